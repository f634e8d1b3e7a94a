# SPDX-License-Identifier: Apache-2.0
"""Drafting on device: extend the head's committed KV, then grow a tree level by level.

vLLM's EagleProposer loads the head and owns its attention groups; the passes are ours, because
vLLM's loop drafts one token a pass.
"""

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from vllm.v1.spec_decode.eagle import EagleProposer

from vllm_eagle_pangu.core.draft import TreeGrower
from vllm_eagle_pangu.core.indices import causal, index_range
from vllm_eagle_pangu.core.paths import AcceptedPaths
from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.core.tree import TreeBatch
from vllm_eagle_pangu.engine.extension import Extension, TreesOfExtension
from vllm_eagle_pangu.engine.head_pass import head_pass
from vllm_eagle_pangu.engine.tree_rows import ChainRows, LayerScratch, LevelRows, TreeRows
from vllm_eagle_pangu.engine.tree_step import TreeStep
from vllm_eagle_pangu.engine.uploads import upload
from vllm_eagle_pangu.kernels.draft_batch import DraftRows, draft_batch
from vllm_eagle_pangu.kernels.top_children import top_children


@dataclass(frozen=True)
class DraftedTrees:
    """`tree` row i was drafted for request `requests[i]` of the batch, in this shape."""

    tree: TreeBatch
    requests: list[int]
    shape: TreeShape


@dataclass(frozen=True)
class TreeOnlyMetadata:
    """Attention metadata of a pass in which every row belongs to a tree."""

    tree: TreeRows


class TreeDrafter:
    """Drafts one tree per request with an EAGLE-3 head."""

    def __init__(
        self, runner: Any, proposer: EagleProposer, implementation: str, attention: str
    ) -> None:
        self.runner = runner
        self.proposer = proposer
        self.implementation = implementation
        self.attention = attention
        self.model = proposer.model
        self.vllm_config = proposer.vllm_config
        self.max_len = min(runner.max_model_len, runner.effective_drafter_max_model_len)
        self.depth = runner.tree_config.shape().depth
        self.width = runner.tree_config.shape().width
        self.window = runner.tree_config.drafter_window
        layer_names = sorted(proposer._draft_attn_layer_names)
        self.head = head_pass(self.model, self.vllm_config, layer_names)
        mapping = getattr(self.model, "draft_id_to_target_id", None)
        self.target_ids = (
            None if mapping is None else mapping + index_range(mapping.shape[0], mapping.device)
        )

    def allocate_scratch(self) -> None:
        """Room for W*D rows per request in each of the head's attention layers."""
        context = self.vllm_config.compilation_config.static_forward_context
        rows = self.runner.max_num_reqs * self.width * self.depth
        for name in self.proposer._draft_attn_layer_names:
            layer = context[name]
            layer.impl.scratch = LayerScratch.empty(layer, rows, self.runner.device)

    def propose(
        self,
        sampled_token_ids: torch.Tensor,  # [B, D+1] or [B, 1], left-aligned, -1 padded
        aux_hidden_states: list[torch.Tensor],  # taps x [N, H_t]
        common_attn_metadata: Any,
    ) -> DraftedTrees | None:
        """Extend the head's KV by the accepted tokens and grow the next trees.

        Returns None when no request of the batch is to be drafted for.
        """
        within = self._requests_within_reach()
        if not within:
            return None
        rows = self._draft_rows(sampled_token_ids)
        extension = Extension.of(rows, self._host_query_start(), within)
        rows = extension.rows
        hidden = torch.cat(aux_hidden_states, dim=-1)[rows.hidden_rows]
        last, state = self._extend(extension, hidden, common_attn_metadata)
        requests = self._requests_to_draft(sampled_token_ids)
        if not requests:
            return None
        places = np.searchsorted(within, requests)
        there = upload(hidden.device, requests=requests, places=places)
        index, sample = there["requests"], rows.sample_rows[there["places"]]
        shape = self.runner.tree_policy.shape(len(requests))
        tree = self._grow(
            shape,
            index,
            root_tokens=rows.tokens[sample],
            prefix_len=rows.positions[sample] + 1,
            last=last[sample],
            state=state[sample],
        )
        return DraftedTrees(tree, requests, shape)

    def _draft_rows(self, sampled: torch.Tensor) -> DraftRows:
        runner = self.runner
        step: TreeStep | None = runner.tree_step
        num_reqs = runner.input_batch.num_reqs
        slots = runner.linear_slots[self.proposer.kv_cache_gid]
        rows = slots.shape[0]
        is_tree = torch.zeros(num_reqs, dtype=torch.bool, device=slots.device)
        positions = runner.positions[:rows]
        paths = None
        if step is not None:
            is_tree.index_fill_(0, step.requests, True)
            positions = step.linear_positions
            paths = step.paths if step.covers_batch else None
        if paths is None:
            paths = _spread(step, num_reqs, self.depth, slots.device)
        drafted = draft_batch(
            input_ids=runner.input_ids.gpu[:rows],
            positions=positions,
            query_start=runner.query_start_loc.gpu[: num_reqs + 1],
            is_tree=is_tree,
            paths=paths,
            next_tokens=self._next_tokens(sampled),
            linear_slots=slots,
            depth=self.depth,
            rows=int(self._host_query_start()[-1]),
            implementation=self.implementation,
        )
        # Rows past the head's last position feed no draft; their rotary position must exist.
        drafted.positions.clamp_(max=self.max_len - 1)
        return drafted

    def _host_query_start(self) -> np.ndarray:
        """`[B+1]` first row of each request among the drafter's, as `DraftRows.query_start`."""
        runner = self.runner
        counts = np.diff(runner.query_start_loc.np[: runner.input_batch.num_reqs + 1])
        if runner.tree_step is not None:
            counts[runner.tree_step.host_requests] = self.depth + 1
        return np.concatenate(([0], counts.cumsum()))

    def _next_tokens(self, sampled: torch.Tensor) -> torch.Tensor:
        """The token behind each plain request's rows: the sampled one, or the prompt's next."""
        runner = self.runner
        tokens = sampled[:, 0].long()
        if runner.tree_step is not None and runner.tree_step.covers_batch:
            return tokens
        discarded = runner.discard_request_mask.np[: runner.input_batch.num_reqs].nonzero()[0]
        if discarded.size == 0:
            return tokens
        states = [runner.requests[runner.input_batch.req_ids[request]] for request in discarded]
        lens = runner.optimistic_seq_lens_cpu[torch.from_numpy(discarded)].tolist()
        known = upload(
            tokens.device,
            requests=discarded,
            tokens=[state.get_token_id(n) for state, n in zip(states, lens, strict=True)],
        )
        return tokens.index_copy(0, known["requests"], known["tokens"])

    def _requests_within_reach(self) -> list[int]:
        """Requests whose new rows may be attended by a draft, their own or one with their prefix.

        Whoever is too long for a tree stays so, and nobody's tree reads what is written behind.
        """
        computed = self.runner.input_batch.num_computed_tokens_cpu
        last = self.max_len - 2 * (self.depth + 1)
        return [r for r in range(self.runner.input_batch.num_reqs) if computed[r] <= last]

    def _requests_to_draft(self, sampled: torch.Tensor) -> list[int]:
        """Requests with a sampled root, room and use for a tree, and no chain-only feature."""
        runner = self.runner
        batch = runner.input_batch
        emitted = _emitted(sampled)
        chosen = []
        for request, req_id in enumerate(batch.req_ids):
            if runner.discard_request_mask.np[request]:
                continue
            params = runner.requests[req_id].sampling_params
            # vLLM validates drafts against a grammar, and counts thinking tokens, along a chain.
            if params is not None and (
                params.structured_outputs is not None
                or getattr(params, "thinking_token_budget", None) is not None
            ):
                continue
            # Without this step's tokens, which bookkeeping has not counted yet.
            tokens = int(batch.num_tokens_no_spec[request])
            outputs = tokens - int(batch.num_prompt_tokens[request]) + emitted[request]
            # The last token comes from the root alone.
            ends = params is not None and outputs + 1 >= params.max_tokens
            if not ends and tokens + 2 * (self.depth + 1) <= self.max_len:
                chosen.append(request)
        return chosen

    def _extend(
        self, extension: Extension, hidden: torch.Tensor, common_attn_metadata: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the head's K/V of the new committed tokens; returns its outputs per row."""
        rows = extension.rows
        hidden = self.model.combine_hidden_states(hidden)
        metadata = self._extend_metadata(extension, common_attn_metadata)
        return self.head(rows.tokens, rows.positions, hidden, metadata, rows.slots)

    def _extend_metadata(self, extension: Extension, common: Any) -> Any:
        step: TreeStep | None = self.runner.tree_step
        trees = None if step is None else extension.trees(step)
        tree_rows = None
        if trees is not None:
            tree_rows = self._accepted_rows(extension, trees)
            if tree_rows.covers_batch:
                return TreeOnlyMetadata(tree_rows)
        rows, host_start = extension.rows, extension.query_start
        num_reqs = len(extension.requests)
        host_lens = self.runner.optimistic_seq_lens_cpu[extension.requests]
        seq_lens, block_table = common.seq_lens, common.block_table_tensor
        if extension.is_part:
            index = upload(seq_lens.device, requests=extension.requests)["requests"]
            seq_lens, block_table = seq_lens[index], block_table[index]
        else:
            seq_lens = seq_lens[:num_reqs].clone()
        if trees is not None:
            # Only so that vLLM's op stays inside the block table: tree rows are overwritten.
            tree_lens = (trees.prefix_len + self.depth + 1).clamp(max=self.max_len)
            seq_lens.index_copy_(0, trees.places, tree_lens.to(seq_lens.dtype))
            ends = np.minimum(np.add(trees.host_prefix_lens, self.depth + 1), self.max_len)
            host_lens.numpy()[trees.host_places] = ends
        common = copy.copy(common)
        common.num_reqs = num_reqs
        common.query_start_loc = rows.query_start.int()
        common.query_start_loc_cpu = torch.from_numpy(host_start).int()
        common.num_actual_tokens = rows.tokens.shape[0]
        common.max_query_len = int(np.diff(host_start).max())
        common.seq_lens = seq_lens
        common.max_seq_len = int(host_lens.max())
        common.block_table_tensor = block_table
        common.slot_mapping = rows.slots
        (group,) = self.proposer.draft_attn_groups
        metadata = group.get_metadata_builder().build(0, common)
        metadata.tree = tree_rows
        return metadata

    def _accepted_rows(self, extension: Extension, trees: TreesOfExtension) -> ChainRows:
        """The D+1 rows of each tree request: a chain behind its committed prefix."""
        start = extension.rows.query_start[trees.places].int()
        count = torch.full_like(start, self.depth + 1)
        return ChainRows(
            block_table=self.runner._block_table(self.proposer.kv_cache_gid, trees.requests),
            prefix_len=trees.prefix_len.int(),
            query_start=start,
            query_count=count,
            key_start=start,
            key_count=count,
            visible=causal(self.depth + 1, start.device).expand(start.shape[0], -1, -1),
            implementation=self.attention,
            covers_batch=len(trees.host_places) == len(extension.requests),
            prefix_start=self._prefix_start(trees.prefix_len),
        )

    def _prefix_start(self, prefix_len: torch.Tensor) -> torch.Tensor | None:
        """The first key that the head attends, `[T] int32`: the last `drafter_window` of them."""
        if self.window is None:
            return None
        return (prefix_len - self.window).clamp(min=0).int()

    def _grow(
        self,
        shape: TreeShape,
        requests: torch.Tensor,  # [B]
        root_tokens: torch.Tensor,  # [B]
        prefix_len: torch.Tensor,  # [B] rows of the head's committed KV
        last: torch.Tensor,  # [B, H] states for the logits
        state: torch.Tensor,  # [B, H] states for the next pass
    ) -> TreeBatch:
        batch, width = requests.shape[0], shape.width
        block_table = self.runner._block_table(self.proposer.kv_cache_gid, requests)
        prefix, prefix_start = prefix_len.int(), self._prefix_start(prefix_len)
        request = index_range(batch, requests.device).int()
        scratch_rows = self.width * self.depth
        first_query, first_key = request * width, request * scratch_rows
        grower = TreeGrower(shape, self.implementation)
        scores, tokens = self._top(last, width)
        frontier = grower.grow_first(scores, tokens)
        hidden = state.repeat_interleave(width, 0)
        for level in range(shape.depth - 1):
            rows = LevelRows(
                block_table=block_table,
                prefix_len=prefix,
                query_start=first_query,
                query_count=torch.full_like(first_query, width),
                key_start=first_key,
                key_count=torch.full_like(first_query, (level + 1) * width),
                visible=frontier.visible,
                implementation=self.attention,
                covers_batch=True,
                prefix_start=prefix_start,
                level=level,
                width=width,
                scratch_rows=scratch_rows,
            )
            positions = (prefix_len + level).repeat_interleave(width)
            last, state = self.head(
                frontier.tokens.reshape(-1),
                positions,
                hidden,
                TreeOnlyMetadata(rows),
                None,
            )
            scores, tokens = self._top(last, width)
            frontier = grower.grow(
                scores.view(batch, width, width), tokens.view(batch, width, width)
            )
            if level < shape.depth - 2:
                state = state.view(batch, width, -1)
                hidden = torch.take_along_dim(state, frontier.parent[..., None], 1).flatten(0, 1)
        return grower.finish(root_tokens)

    def _top(self, states: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities and target ids of the best `width` tokens; each `[rows, W]`."""
        return top_children(self.head.logits(states), width, self.target_ids, self.implementation)


def _emitted(sampled: torch.Tensor) -> list[int]:
    """Tokens of `sampled: [B, n]`, by request; off the host, the one that there is at least."""
    if sampled.device.type != "cpu":
        return [1] * sampled.shape[0]
    return (sampled >= 0).sum(dim=1).tolist()


def _spread(
    step: TreeStep | None, requests: int, depth: int, device: torch.device
) -> AcceptedPaths:
    """The step's T paths as rows of a batch of `requests`; other requests accepted nothing."""
    paths = AcceptedPaths(
        rows=torch.zeros(requests, depth + 1, dtype=torch.long, device=device),
        length=torch.zeros(requests, dtype=torch.long, device=device),
        output=torch.full((requests, depth + 1), -1, device=device),
    )
    if step is not None:
        for name in ("rows", "length", "output"):
            getattr(paths, name).index_copy_(0, step.requests, getattr(step.paths, name))
    return paths
