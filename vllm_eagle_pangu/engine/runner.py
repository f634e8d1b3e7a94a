# SPDX-License-Identifier: Apache-2.0
"""The tree step inside vLLM's V1 model runner: `vllm_eagle_pangu.step` tells the step itself.

vLLM calls, in this order: `_prepare_inputs`, which places the trees in its batch,
`_build_attention_metadata`, which gives them to the attention layers, its forward, `_sample`, which
draws, walks and commits, and `propose_draft_token_ids`, which drafts, or leaves that to
`take_draft_token_ids`, by when vLLM has handed on what the step emitted. Everything else is vLLM's.
"""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from vllm.config import get_layers_from_vllm_config
from vllm.logger import init_logger
from vllm.model_executor.layers.attention import Attention
from vllm.v1.outputs import SamplerOutput

from vllm_eagle_pangu.compat.lent import lent
from vllm_eagle_pangu.config import tree_config
from vllm_eagle_pangu.core.adaptive import AdaptiveShapes, row_counts
from vllm_eagle_pangu.core.ops import Ops
from vllm_eagle_pangu.core.policy import TreePolicy
from vllm_eagle_pangu.engine.batch_view import view_of
from vllm_eagle_pangu.engine.draft_head import DraftHead
from vllm_eagle_pangu.engine.forward_profile import forward_seconds, run_once
from vllm_eagle_pangu.engine.head_fit import tensor_shapes
from vllm_eagle_pangu.engine.head_parallel import drafts_in_parallel, keeping_mask
from vllm_eagle_pangu.engine.learnt_file import LearntFile, learnt_file
from vllm_eagle_pangu.engine.loaded_layers import (
    require_readable_pages,
    require_tree_attention,
)
from vllm_eagle_pangu.engine.request_sampling import RequestSampling
from vllm_eagle_pangu.engine.sampling import draw
from vllm_eagle_pangu.engine.step_memory import StepMemory
from vllm_eagle_pangu.engine.target_pages import TargetPages
from vllm_eagle_pangu.engine.tracer import StepTracer
from vllm_eagle_pangu.engine.unasked import UnaskedSteps
from vllm_eagle_pangu.env import forced_eager_attention
from vllm_eagle_pangu.kernels.tree_prune import tree_prune
from vllm_eagle_pangu.step.accept import Accepted, Unseen
from vllm_eagle_pangu.step.checks import Checks
from vllm_eagle_pangu.step.drafter import Eagle3Drafter
from vllm_eagle_pangu.step.grow import Drafted, GrowShape, grow_shape
from vllm_eagle_pangu.step.head import Limits, TargetStates
from vllm_eagle_pangu.step.place import PendingTree, Placed, PlacedTrees, ScheduledTree
from vllm_eagle_pangu.step.rows import LayerScratch
from vllm_eagle_pangu.step.stages import Stages
from vllm_eagle_pangu.step.step import Step
from vllm_eagle_pangu.step.verify import verify_rows

if TYPE_CHECKING:
    import numpy as np
    from vllm.config import SpeculativeConfig
    from vllm.v1.attention.backend import CommonAttentionMetadata
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
    from vllm.v1.sample.metadata import SamplingMetadata
    from vllm.v1.spec_decode.metadata import SpecDecodeMetadata
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner
else:
    # A platform's runner stands behind the mixin; naming one here would load it on every platform.
    GPUModelRunner = object

logger = init_logger(f"vllm.{__name__}")

# Rows x vocabulary that one call of the sampler may hold however few requests vLLM was told of:
# 32 MB a float32 copy, against a call (0.1 ms) more for every few rows.
HOLD = 2**23

Output = TypeVar("Output")


@dataclass(frozen=True)
class Undrafted:
    """A step whose tokens are on their way to the clients, and for which nothing is drafted yet."""

    accepted: Accepted
    target: TargetStates


class TreeRunnerMixin(GPUModelRunner):
    """Overrides of `GPUModelRunner`; mix in before a platform's runner.

    `device_implementation`: which implementation of the kernels the platform runs.
    `strided_pages`: whether one call of `commit_pages` can write its KV pages, of all layers;
    otherwise each layer writes with vLLM's own op.
    `emits_first`: whether clients get a step's tokens before the next trees are drafted. For hosts:
    a device would wait for the host there, as drafting is queued while the forward still runs.
    """

    device_implementation: ClassVar[str]
    strided_pages: ClassVar[bool] = False
    emits_first: ClassVar[bool] = False
    speculative_config: "SpeculativeConfig | None"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        config = tree_config(self.vllm_config)
        assert config is not None, "the tree worker runs only with method eagle_pangu"
        self.tree_config = config
        self.reference_mode = config.verify_mode == "reference"
        implementation = "reference" if self.reference_mode else self.device_implementation
        self.ops = Ops.bind(
            implementation, self.attention_implementation(), check=self.reference_mode
        )
        self.stages = Stages(Checks(self.reference_mode))
        # What adaptive trees learn.
        self.learnt: LearntFile | None = None
        # By request, the tree that the last step drafted for it.
        self.trees: dict[str, PendingTree] = {}
        # The step between two calls of vLLM's: its last result.
        self.in_flight: Placed | Accepted | Undrafted | Unseen | None = None
        # Whether no tree is in sight, so that the drafter misses the step that runs.
        self.rests = False
        self.unasked = UnaskedSteps(self)
        trace = config.trace()
        self.tracer = None if trace is None else StepTracer(self, trace)
        if self.tracer is not None:
            self.stages.observers += (self.tracer,)

    # ---- start-up ----

    def attention_implementation(self) -> str | None:
        """Of tree attention, where it is another one than that of the other ops."""
        return "reference" if forced_eager_attention() else None

    def load_head(self) -> DraftHead:
        """The head that vLLM's proposer loaded, on the platform's layers."""
        return DraftHead(self.drafter, self.ops)

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        self.ops.prepare(self.dtype)
        logger.info_once(
            "eagle_pangu: kernels: %s, tree attention: %s",
            self.ops.implementation,
            self.ops.attention,
        )
        draft = self.drafter.draft_model_config
        shapes = tensor_shapes(Path(draft.model).expanduser())
        parallel = drafts_in_parallel(self.tree_config, draft.architectures, shapes)
        with keeping_mask(self.drafter) if parallel else nullcontext():
            super().load_model(*args, **kwargs)
        require_tree_attention(self.vllm_config, self.drafter._draft_attn_layer_names)
        shape = self.tree_config.shape()
        self.limits = limits = Limits(
            shape.width,
            shape.depth,
            min(self.max_model_len, self.effective_drafter_max_model_len),
            self.tree_config.drafter_window,
        )
        self.draft_head = self.load_head()
        self.pages = TargetPages(self.ops, check=self.reference_mode)
        drafter = Eagle3Drafter(self.draft_head, limits, self.ops)
        policy = self._policy()
        self.learnt = learnt_file(policy, self)
        self.step = Step(drafter, policy, self.pages, self.ops, limits.depth, self.stages)
        self.step_memory = self._allocate_scratch(limits)
        self.step_memory.log(self.cache_config.kv_cache_memory_bytes)

    def _policy(self) -> TreePolicy:
        """Trees that follow latency are chosen on the host, wherever they are drafted."""
        config = self.tree_config
        if config.tree_policy != "adaptive" or self.device.type == "cpu":
            return config.policy(self.ops)
        of_host = Ops.bind("reference" if self.reference_mode else "cpp")
        tree_prune.prepare(of_host.implementation)
        sizes = self.compilation_config.cudagraph_capture_sizes or ()
        return config.policy(of_host, on_host=False, sizes=sizes)

    def _attention_layers(self) -> dict[str, Attention]:
        """The target's and the drafter's."""
        return get_layers_from_vllm_config(self.vllm_config, Attention)

    def _target_layers(self) -> dict[str, Attention]:
        draft = self.drafter._draft_attn_layer_names
        return {name: x for name, x in self._attention_layers().items() if name not in draft}

    def _allocate_scratch(self, limits: Limits) -> StepMemory:
        """Before vLLM's memory profile, which gives what is left to the KV cache."""
        rows = min(self.max_num_reqs * (self.num_spec_tokens + 1), self.max_num_tokens)
        target, head = self._target_layers().values(), self.draft_head
        of_head = self.max_num_reqs * limits.scratch_rows
        for layers, count in ((target, rows), (head.layers, of_head)):
            for layer in layers:
                layer.impl.scratch = LayerScratch.empty(layer, count, self.device)
                layer.impl.attend = self.ops.tree_attention
        memory = StepMemory(
            target=[layer.impl.scratch for layer in target],
            drafter=[layer.impl.scratch for layer in head.layers],
            target_logits=(rows, self.model_config.get_vocab_size()),
            head_logits=(
                self.max_num_reqs * max(limits.width, head.parallel * (limits.depth - 1)),
                head.model.logits_processor.vocab_size,
            ),
            dtype=self.dtype,
        )
        # All that vLLM 0.23 counts of what a GPU holds before its profile run.
        if hasattr(self, "model_memory_usage"):
            self.model_memory_usage += memory.scratch_bytes
        return memory

    def initialize_kv_cache(self, *args: Any, **kwargs: Any) -> None:
        """On a GPU twice: a small cache to profile CUDA graphs with, then the real one."""
        self._forget_pages()
        super().initialize_kv_cache(*args, **kwargs)
        groups = self.kv_cache_config.kv_cache_groups
        self.pages.take(groups, self._target_layers())
        layers = self._attention_layers()
        for group in groups:
            for name in group.layer_names:
                require_readable_pages(layers[name])

    def _cleanup_profiling_kv_cache(self) -> None:
        self._forget_pages()
        super()._cleanup_profiling_kv_cache()

    def _forget_pages(self) -> None:
        """Before vLLM frees or replaces its KV cache: our views would keep the memory, and graphs
        read what was there."""
        self.grow_by(grow_shape)
        self.pages.forget()
        for layer in self._attention_layers().values():
            layer.impl.forget_pages()

    def tabulate_commits(self) -> None:
        """What one launch commits; nothing where layers write by themselves."""
        if self.strided_pages and not self.reference_mode:
            self.pages.tabulate()

    def capture_growth(self) -> None:
        """Where the platform has graphs: grow trees by them from now on. Unless overridden, not."""

    def grow_by(self, grow_one: GrowShape) -> None:
        """From now on, where the head drafts and nobody put another drafter in its place."""
        if isinstance(self.step.drafter, Eagle3Drafter):
            self.step.drafter = replace(self.step.drafter, grow_one=grow_one)

    def profile_forward(self) -> None:
        """Tell a policy that follows latency what rows cost, before its first step."""
        policy = self.step.policy
        if not isinstance(policy, AdaptiveShapes) or not policy.on_host:
            return
        most, _ = self.step_memory.target_logits
        run_once(self, row_counts(most))
        found = forward_seconds(self, most)
        for rows, seconds in found.items():
            policy.costs.expect(rows, seconds)
        least, most = min(found), max(found)
        logger.info_once(
            "eagle_pangu: adaptive trees: a forward of %d rows takes %.1f ms, one of %d %.1f",
            *(least, 1e3 * found[least], most, 1e3 * found[most]),
        )

    def _dummy_sampler_run(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """vLLM's profile sees a step's largest call of the sampler, beside the logits it keeps."""
        most, _ = self.step_memory.target_logits
        rows = max(hidden_states.shape[0], min(most, self._rows_per_draw()))
        logits = self.step_memory.logits(self.device)
        # vLLM draws states of its own; it takes the shape from these.
        states = hidden_states.new_empty(rows, hidden_states.shape[1])
        output = super()._dummy_sampler_run(states)
        del logits
        return output

    # ---- a step ----

    def execute_model(
        self, scheduler_output: "SchedulerOutput", *args: Any, **kwargs: Any
    ) -> "ModelRunnerOutput | None":
        if self.unasked.left:
            if self.unasked.covers(scheduler_output):
                output = super().execute_model(scheduler_output, *args, **kwargs)
                self.unasked.passed(scheduler_output.total_num_scheduled_tokens)
                return output
            self.unasked.end()
            self.stages.resume()
        # Nobody asked for the last step's drafts: the drafter has to know its tokens all the same.
        self._draft_late()
        batch = len(scheduler_output.num_scheduled_tokens)
        new = [request.req_id for request in scheduler_output.scheduled_new_reqs]
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
        return super().take_draft_token_ids()

    def _draft_late(self) -> None:
        step = self.in_flight
        if isinstance(step, Undrafted):
            # Whatever becomes of it, it is not tried again.
            self.in_flight = None
            with torch.inference_mode():
                self._draft_token_ids = self._watched(self._draft, step)
            self._end(step.accepted)

    def _end(self, step: Accepted | Unseen) -> None:
        self.step.policy.observe(self.stages.end(step))
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

    def _rows_per_draw(self) -> int:
        """The most of one call of the sampler; `_dummy_sampler_run` shows vLLM that many."""
        return max(self.max_num_reqs, HOLD // self.model_config.get_vocab_size())

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
        drafted = Drafted()
        if self.rests:
            self._miss(step.accepted.placed.view.rows)
        else:
            drafted = self.step.draft(step.accepted, step.target)
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
