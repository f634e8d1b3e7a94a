# SPDX-License-Identifier: Apache-2.0
"""The tree step inside vLLM's V1 model runner: `vllm_eagle_pangu.step` tells the step itself.

vLLM calls, in this order: `_prepare_inputs`, which places the trees in its batch,
`_build_attention_metadata`, which gives them to the attention layers, its forward, `_sample`, which
draws, walks and commits, and `propose_draft_token_ids`, which drafts, or leaves that to
`take_draft_token_ids`, by when vLLM has handed on what the step emitted. Everything else is vLLM's.
"""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from vllm.v1.outputs import SamplerOutput

from vllm_eagle_pangu.compat.lent import lent
from vllm_eagle_pangu.engine.batch_view import view_of
from vllm_eagle_pangu.engine.request_sampling import RequestSampling
from vllm_eagle_pangu.engine.runner_start import TreeRunnerStart
from vllm_eagle_pangu.engine.sampling import draw
from vllm_eagle_pangu.engine.tracer import StepTracer
from vllm_eagle_pangu.engine.unasked import UnaskedSteps
from vllm_eagle_pangu.step.accept import Accepted, Unseen
from vllm_eagle_pangu.step.grow import Drafted
from vllm_eagle_pangu.step.head import TargetStates
from vllm_eagle_pangu.step.place import PendingTree, Placed, PlacedTrees, ScheduledTree
from vllm_eagle_pangu.step.verify import verify_rows

if TYPE_CHECKING:
    import numpy as np
    from vllm.config import SpeculativeConfig
    from vllm.v1.attention.backend import CommonAttentionMetadata
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
    from vllm.v1.sample.metadata import SamplingMetadata
    from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

Output = TypeVar("Output")


@dataclass(frozen=True)
class Undrafted:
    """A step whose tokens are on their way to the clients, and for which nothing is drafted yet."""

    accepted: Accepted
    target: TargetStates


class TreeRunnerMixin(TreeRunnerStart):
    """Overrides of `GPUModelRunner`; mix in before a platform's runner.

    `emits_first`: whether clients get a step's tokens before the next trees are drafted. For hosts:
    a device would wait for the host there, as drafting is queued while the forward still runs.
    """

    emits_first: ClassVar[bool] = False
    speculative_config: "SpeculativeConfig | None"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # By request, the tree that the last step drafted for it.
        self.trees: dict[str, PendingTree] = {}
        # The step between two calls of vLLM's: its last result.
        self.in_flight: Placed | Accepted | Undrafted | Unseen | None = None
        # Whether no tree is in sight, so that the drafter misses the step that runs.
        self.rests = False
        # Requests that began in it, and that need the next one to read their prompts.
        self.new_requests = self.others_waiting = 0
        # Of its rows, those that the drafter reads later, less those that it read late.
        self.late = 0
        self.unasked = UnaskedSteps(self)
        trace = self.tree_config.trace()
        self.tracer = None if trace is None else StepTracer(self, trace)
        if self.tracer is not None:
            self.stages.observers += (self.tracer,)

    def execute_model(
        self, scheduler_output: "SchedulerOutput", *args: Any, **kwargs: Any
    ) -> "ModelRunnerOutput | None":
        if self.unasked.left:
            if self.unasked.covers(scheduler_output):
                output = super().execute_model(scheduler_output, *args, **kwargs)
                self.unasked.passed(scheduler_output)
                return output
            self.unasked.end()
            self.stages.resume()
        # Nobody asked for the last step's drafts: the drafter has to know its tokens all the same.
        self._draft_late()
        batch = len(scheduler_output.num_scheduled_tokens)
        new = [request.req_id for request in scheduler_output.scheduled_new_reqs]
        self.new_requests, self.late = len(new), 0
        self.others_waiting = getattr(scheduler_output, "others_waiting", 0)
        self.stages.begin(new, list(scheduler_output.finished_req_ids))
        may_rest = batch > 0 and not self.trees and self.step.drafter.may_miss_in is not None
        steps = self.step.policy.rests(batch, self.unasked.count()) if may_rest else 0
        self.rests = steps > 0
        unseen = self.rests and not self.stages.observers
        rows = scheduler_output.total_num_scheduled_tokens
        self.in_flight = Unseen(batch, rows, steps - 1) if unseen else None
        output = self._watched(super().execute_model, scheduler_output, *args, **kwargs)
        self.stages.enter("other")
        return output

    def sample_tokens(self, *args: Any, **kwargs: Any) -> "ModelRunnerOutput":
        if self.unasked.ends:
            output = super().sample_tokens(*args, **kwargs)
            self.unasked.end()
            self.stages.resume()
            return output
        output = self._watched(super().sample_tokens, *args, **kwargs)
        if isinstance(self.in_flight, Undrafted):
            self.stages.enter("between")
        elif isinstance(self.in_flight, (Accepted, Unseen)):
            self._end(self.in_flight)
            self.in_flight = None
        return output

    def take_draft_token_ids(self) -> "DraftTokenIds | None":
        """vLLM asks for them once what the step emitted is on its way."""
        self._draft_late()
        # Where there are none the scheduler has nothing to do.
        return super().take_draft_token_ids() if self.trees else None

    def _draft_late(self) -> None:
        step = self.in_flight
        if isinstance(step, Undrafted):
            # Whatever becomes of it, it is not tried again.
            self.in_flight = None
            with torch.inference_mode():
                self._draft_token_ids = self._watched(self._draft, step)
            self._end(step.accepted)

    def _end(self, step: Accepted | Unseen) -> None:
        self.step.policy.observe(self.stages.end(step, self.late))
        if self.learnt is not None and self.learnt.stepped():
            self.stages.resume()
        if isinstance(step, Unseen):
            self.unasked.begin(step.batch, step.further)

    def _watched(self, half: Callable[..., Output], *args: Any, **kwargs: Any) -> Output:
        """A half of vLLM's step: observers learn of its failure; one that passes unseen is plain
        decoding's all through."""
        own = self.speculative_config
        if isinstance(self.in_flight, Unseen):
            self.speculative_config = None
        try:
            return half(*args, **kwargs)
        except Exception as error:
            self.stages.fail(error)
            raise
        finally:
            self.speculative_config = own

    def _prepare_inputs(
        self, scheduler_output: "SchedulerOutput", num_scheduled_tokens: "np.ndarray"
    ) -> Any:
        if isinstance(self.in_flight, Unseen):
            prepared = super()._prepare_inputs(scheduler_output, num_scheduled_tokens)
            self._miss(self.in_flight.rows)
            return prepared
        self.stages.enter("prepare")
        # Without trees it is a plain batch, which vLLM prepares so where nobody speculates.
        none = not any(scheduler_output.scheduled_spec_decode_tokens.values())
        with lent(self, speculative_config=None) if none else nullcontext():
            prepared = super()._prepare_inputs(scheduler_output, num_scheduled_tokens)
        self.stages.enter("place")
        trees = self._scheduled_trees(scheduler_output)
        self.trees.clear()
        placed = self.step.before(view_of(self, bool(trees)), trees)
        if placed.trees is not None:
            self._write_tree_rows(placed.trees)
        self.in_flight = placed
        self.stages.enter("prepare")
        return prepared

    def _miss(self, rows: int) -> None:
        """The drafter does without what the step's `rows` write."""
        self.step.drafter.miss(self.host_slots()[:rows])

    def host_slots(self) -> "np.ndarray":
        """Where the last batch's rows were written to, in the group in which they may be missed;
        behind them, whatever is there."""
        group = self.step.drafter.may_miss_in
        assert group is not None
        table = self.input_batch.block_table.block_tables[group]
        slots: np.ndarray = table.slot_mapping.gpu.numpy()
        return slots

    def does_as_vllm(self, scheduler_output: "SchedulerOutput") -> bool:
        """Whether vLLM's methods alone do all that a step without trees takes."""
        return True

    def vllm_methods(self, names: Iterable[str]) -> dict[str, Callable[..., Any]]:
        """What these are where nobody overrides them."""
        return {name: getattr(super(TreeRunnerMixin, self), name) for name in names}

    def _scheduled_trees(self, scheduler_output: "SchedulerOutput") -> list[ScheduledTree]:
        drafts = scheduler_output.scheduled_spec_decode_tokens
        index_of = self.input_batch.req_id_to_index
        placed = sorted((index_of[req_id], req_id) for req_id, tokens in drafts.items() if tokens)
        return [ScheduledTree(i, drafts[req_id], self.trees[req_id]) for i, req_id in placed]

    def _write_tree_rows(self, trees: PlacedTrees) -> None:
        """Nodes stand at their depth behind the prefix, and their K/V stays out of the pages."""
        self.positions.index_copy_(0, trees.batch_rows, trees.positions())
        for table in self.input_batch.block_table.block_tables:
            table.slot_mapping.gpu.index_fill_(0, trees.node_rows, -1)

    def _build_attention_metadata(self, *args: Any, **kwargs: Any) -> Any:
        attn_metadata, common = super()._build_attention_metadata(*args, **kwargs)
        placed = self.in_flight
        if isinstance(placed, Placed) and placed.trees is not None:
            self.stages.enter("place")
            self.pages.attach(attn_metadata, verify_rows(placed))
        else:
            self.pages.attach_none()
        # Till `execute_model` ends: the forward follows, and its logits.
        self.stages.enter("verify")
        return attn_metadata, common

    def _sample(
        self, logits: torch.Tensor, spec_decode_metadata: "SpecDecodeMetadata | None"
    ) -> SamplerOutput:
        placed = self.in_flight
        self.stages.enter("draw")
        if not isinstance(placed, Placed):
            output = super()._sample(logits, spec_decode_metadata)
            self.stages.enter("other")
            return output
        params = RequestSampling.of_step(self.input_batch)
        if placed.trees is None:
            output = self.sampler(logits=logits, sampling_metadata=params.by_request())
            self.in_flight = self.step.after(placed, output.sampled_token_ids[:, 0].long())
        else:
            counts, most = placed.logit_counts, self._rows_per_draw()
            draws = draw(self.sampler, logits, params, counts, placed.trees, most)
            accepted = self.step.after(placed, draws.tokens)
            output = SamplerOutput(
                # vLLM's form: `[B, D+1]` token ids, left-aligned, -1 padded.
                sampled_token_ids=accepted.paths.output.int(),
                logprobs_tensors=draws.logprobs_of(accepted.logit_rows),
            )
            self.in_flight = accepted
        self.stages.enter("other")
        return output

    def _input_fits_in_drafter(self, common_attn_metadata: "CommonAttentionMetadata") -> bool:
        """Always: the drafter leaves out single requests, where vLLM leaves out the batch."""
        return common_attn_metadata is not None

    def propose_draft_token_ids(
        self,
        scheduler_output: "SchedulerOutput",
        sampled_token_ids: torch.Tensor,
        sampling_metadata: "SamplingMetadata",
        hidden_states: torch.Tensor,
        sample_hidden_states: torch.Tensor,
        aux_hidden_states: list[torch.Tensor] | None,
        spec_decode_metadata: "SpecDecodeMetadata | None",
        common_attn_metadata: "CommonAttentionMetadata",
        slot_mappings: object,
    ) -> list[list[int]]:
        """Draft the next tree of every request; `[]` for requests that go without, or for all
        where clients come first."""
        count = scheduler_output.total_num_scheduled_tokens
        assert aux_hidden_states is not None and isinstance(self.in_flight, Accepted)
        taps = [hidden[:count] for hidden in aux_hidden_states]
        step = Undrafted(self.in_flight, TargetStates(taps, common_attn_metadata))
        if self.emits_first:
            self.in_flight = step
            return [[] for _ in range(self.input_batch.num_reqs)]
        return self._draft(step)

    def _draft(self, step: Undrafted) -> list[list[int]]:
        drafted, view = Drafted(), step.accepted.placed.view
        drafter, policy = self.step.drafter, self.step.policy
        behind = drafter.behind
        if self.rests:
            self._miss(view.rows)
        elif policy.puts_off(view.requests, self.new_requests, self.others_waiting):
            self.step.put_off(step.accepted, step.target)
        else:
            drafted = self.step.draft(step.accepted, step.target)
        # What it misses it does not read late.
        self.late = 0 if self.rests else drafter.behind - behind
        tokens = self._store_trees(drafted)
        self.stages.enter("other")
        return tokens

    def _store_trees(self, drafted: Drafted) -> list[list[int]]:
        """Keep the trees for the step that verifies them; their tokens, for the scheduler.

        Where a step waits for the device: the scheduler needs the tokens on the host.
        """
        tokens: list[list[int]] = [[] for _ in range(self.input_batch.num_reqs)]
        for trees in drafted.trees:
            rows = trees.tree.tokens.where(trees.tree.valid, -1)[:, 1:].tolist()
            for row, (request, ids) in enumerate(zip(trees.requests, rows, strict=True)):
                tokens[request] = [token for token in ids if token >= 0]
                pending = PendingTree(trees.tree, row, len(tokens[request]), trees.shape)
                self.trees[self.input_batch.req_ids[request]] = pending
        return tokens
