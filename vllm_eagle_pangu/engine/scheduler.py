# SPDX-License-Identifier: Apache-2.0
"""vLLM's scheduler, in which trees give way: each step is that of plain decoding, and trees get
the rows and the KV blocks that it leaves over."""

import logging
from typing import Any

from vllm.platforms import current_platform
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import DraftTokenIds
from vllm.v1.request import Request

from vllm_eagle_pangu.compat import arrivals
from vllm_eagle_pangu.config import tree_config
from vllm_eagle_pangu.core.shares import share_out


class TreeScheduler(Scheduler):
    """Keeps drafted tokens to itself until vLLM has made a step without them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Why: vLLM warns of the key that `compat.engine_args` sets, which no user wrote.
        # How: this one message passes unheard. Upstream: Scheduler.__init__.
        # Remove when: vLLM 0.32's "experimental" is gone from it.
        vllm_logger = logging.getLogger(Scheduler.__module__)
        vllm_logger.addFilter(_is_not_of_kept_block)
        try:
            super().__init__(*args, **kwargs)
        finally:
            vllm_logger.removeFilter(_is_not_of_kept_block)
        config = tree_config(self.vllm_config)
        assert config is not None, "the tree scheduler runs only with method eagle_pangu"
        self.tree_shape = config.shape()
        if current_platform.device_type == "cpu":
            arrivals.install()
        # By request, the nodes of the tree that the last step drafted, parents first.
        self.drafted: dict[str, list[int]] = {}
        # The head drafts in a scratch of its own; its pages are written for committed tokens only.
        self.num_lookahead_tokens = 0
        # Why: vLLM pads a new request of one token to the rows of a drafted one, or lets it wait.
        # How: that is for CUDA graphs of one size and off where the number of drafts varies.
        # Upstream: `pad_spec_decode` in Scheduler.schedule, vllm/v1/core/sched/scheduler.py.
        # Remove when: vLLM pads in the worker, or lets a scheduler say that it does not.
        self.dynamic_sd_lookup = [self.num_spec_tokens] * (self.max_num_running_reqs + 1)

    def update_draft_token_ids(self, draft_token_ids: DraftTokenIds) -> None:
        """Takes the drafted tokens off the requests, which vLLM would schedule with them."""
        super().update_draft_token_ids(draft_token_ids)
        self.drafted = {}
        for req_id in draft_token_ids.req_ids:
            request = self.requests.get(req_id)
            if request is not None and request.spec_token_ids:
                self.drafted[req_id] = request.spec_token_ids
                request.spec_token_ids = []

    def _update_after_schedule(self, scheduler_output: SchedulerOutput) -> None:
        """The last thing that vLLM does in `schedule`, and the first to count scheduled tokens."""
        scheduler_output.others_waiting = self._others_waiting(scheduler_output)
        self._add_trees(scheduler_output)
        super()._update_after_schedule(scheduler_output)

    def _others_waiting(self, step: SchedulerOutput) -> int:
        """Requests of whose prompts a plain step reads nothing, or not the end, for want of rows.

        In a step that reads none nobody waits for that.
        """
        rows = step.num_scheduled_tokens
        if step.total_num_scheduled_tokens == len(rows):
            return 0
        count = sum(
            request.num_computed_tokens + rows.get(request.request_id, 0) < request.num_tokens
            for request in self.running
        )
        if self.waiting and self._room > 0:
            first = self.waiting.peek_request()
            left = self._rows - step.total_num_scheduled_tokens
            # Where prompts are read in part it waits for something else as long as a row is left.
            in_part = self.scheduler_config.enable_chunked_prefill
            needs = 1 if in_part else first.num_tokens - first.num_computed_tokens
            if needs > left:
                count += min(len(self.waiting), self._room)
        return count

    def arrived(self, count: int) -> int:
        """Of so many requests that are not yet known here, those for which there is room."""
        return max(min(count, self._room - len(self.waiting)), 0)

    @property
    def _room(self) -> int:
        """For how many more requests there is."""
        return self.max_num_running_reqs - len(self.running)

    @property
    def _rows(self) -> int:
        """That a step may have."""
        return min(self.max_num_scheduled_tokens, self.scheduler_config.max_num_batched_tokens)

    def _add_trees(self, step: SchedulerOutput) -> None:
        """Add to a plain step what fits of each tree whose root it decodes."""
        if not self.drafted:
            return
        trees = self._trees_of(step)
        wanted = [self._useful_nodes(request) for _, request in trees]
        shares = share_out(self._rows - step.total_num_scheduled_tokens, wanted)
        for (index, request), share in zip(trees, shares, strict=True):
            nodes = self._allocate(step, index, request, share)
            if nodes:
                req_id = request.request_id
                step.scheduled_spec_decode_tokens[req_id] = self.drafted[req_id][:nodes]
                step.num_scheduled_tokens[req_id] += nodes
                step.total_num_scheduled_tokens += nodes
        self.drafted = {}

    def _trees_of(self, step: SchedulerOutput) -> list[tuple[int, Request]]:
        """Drafted requests whose root the step decodes, with their index among the cached ones."""
        cached = step.scheduled_cached_reqs
        trees = []
        for index, req_id in enumerate(cached.req_ids):
            if req_id in self.drafted and req_id not in cached.resumed_req_ids:
                request = self.requests[req_id]
                reached = request.num_computed_tokens + step.num_scheduled_tokens[req_id]
                if reached == request.num_tokens:
                    trees.append((index, request))
        return trees

    def _useful_nodes(self, request: Request) -> int:
        """Of the request's tree, what can still be emitted; a path ends in one more token."""
        tokens_left = min(
            request.max_tokens - request.num_output_tokens, self.max_model_len - request.num_tokens
        )
        nodes = min(
            len(self.drafted[request.request_id]),
            self.tree_shape.nodes_down_to(tokens_left - 1),
            # Rows are laid out one after the other, each within the block table.
            self.max_model_len - request.num_tokens - 1,
        )
        return max(nodes, 0)

    def _allocate(self, step: SchedulerOutput, index: int, request: Request, nodes: int) -> int:
        """Slots behind the root for `nodes` nodes; returns for how many there are.

        A new block is taken only where every running request could take one after it.
        """
        held = self._slots_behind_root(request)
        if nodes <= held:
            return nodes
        blocks = self.kv_cache_manager.allocate_slots(
            request, 1 + nodes, reserved_blocks=len(self.running)
        )
        if blocks is None:
            return held
        new, ids = blocks.get_block_ids(), step.scheduled_cached_reqs.new_block_ids
        plain = ids[index]
        if plain is not None:
            new = tuple(before + behind for before, behind in zip(plain, new, strict=True))
        ids[index] = new
        return nodes

    def _slots_behind_root(self, request: Request) -> int:
        """Slots in the request's blocks behind the one of its root."""
        held = self.kv_cache_manager.get_blocks(request.request_id).blocks
        groups = self.kv_cache_config.kv_cache_groups
        slots = (
            len(blocks) * group.kv_cache_spec.block_size
            for blocks, group in zip(held, groups, strict=True)
        )
        return min(slots) - request.num_tokens


def _is_not_of_kept_block(record: logging.LogRecord) -> bool:
    return "prefix-cache block dropping is disabled" not in record.getMessage()
