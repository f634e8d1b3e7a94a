# SPDX-License-Identifier: Apache-2.0
"""The tree step inside vLLM's V1 model runner.

In step order: `_prepare_inputs` places the trees in the batch, `_build_attention_metadata` hands
their masks to the attention layers, `_sample` draws, walks and commits, and
`propose_draft_token_ids` drafts the next trees. Everything else is vLLM's.
"""

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from vllm.config import get_layers_from_vllm_config
from vllm.model_executor.layers.attention import Attention
from vllm.v1.outputs import SamplerOutput

from vllm_eagle_pangu.config import forced_eager_attention, tree_config
from vllm_eagle_pangu.core.paths import AcceptedPaths
from vllm_eagle_pangu.engine.attention import TreeAttentionMixin, refuse_window
from vllm_eagle_pangu.engine.drafter import DraftedTrees, TreeDrafter
from vllm_eagle_pangu.engine.loaded_layers import require_tree_attention
from vllm_eagle_pangu.engine.page_proof import require_readable_pages
from vllm_eagle_pangu.engine.request_sampling import RequestSampling
from vllm_eagle_pangu.engine.sampling import Draws, draw, rows_at_a_time
from vllm_eagle_pangu.engine.step_memory import ScratchSize, StepMemory
from vllm_eagle_pangu.engine.tracer import StepTracer
from vllm_eagle_pangu.engine.tree_rows import LayerScratch, VerifyRows
from vllm_eagle_pangu.engine.tree_step import NO_DRAFT, StoredTree, TreeStep, lay_out
from vllm_eagle_pangu.kernels import (
    draft_batch,
    kv_commit,
    top_children,
    tree_accept,
    tree_attention,
    tree_build,
    tree_expand,
)

# In performance mode the trees of one step in so many are checked, which waits for the device.
CHECK_EVERY = 1024
KERNELS = (draft_batch, kv_commit, top_children, tree_accept, tree_build, tree_expand)

if TYPE_CHECKING:
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner
else:
    # A platform's runner stands behind the mixin; naming one here would load it on every platform.
    GPUModelRunner = object


class TreeRunnerMixin(GPUModelRunner):
    """Overrides of `GPUModelRunner`; mix in before a platform's runner.

    `device_implementation`: which implementation of the kernels the platform runs.
    `strided_pages`: whether its KV pages are plain strided tensors, which one launch can commit to
    for all layers; otherwise each layer writes with vLLM's own op.
    """

    device_implementation: ClassVar[str]
    strided_pages: ClassVar[bool] = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        config = tree_config(self.vllm_config)
        assert config is not None, "the tree worker runs only with method eagle_pangu"
        self.tree_config = config
        self.tree_policy = config.policy()
        self.reference_mode = config.verify_mode == "reference"
        self.implementation = "reference" if self.reference_mode else self.device_implementation
        self.attention = "reference" if forced_eager_attention() else self.implementation
        self.trees: dict[str, StoredTree] = {}
        self.commit_layers: dict[int, list[kv_commit.CommitLayers]] = {}
        self.steps = 0
        self.tree_step: TreeStep | None = None
        trace = config.trace()
        # Off, a trace costs nothing: what it adds is wrapped around this runner's methods.
        self.tracer = None if trace is None else StepTracer(self, trace)

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        self._prepare_kernels()
        super().load_model(*args, **kwargs)
        require_tree_attention(self.vllm_config, self.drafter._draft_attn_layer_names)
        self.tree_drafter = TreeDrafter(self, self.drafter, self.implementation, self.attention)
        self.step_memory = self._allocate_scratch()
        self.step_memory.log(self.cache_config.kv_cache_memory_bytes)

    def _attention_layers(self) -> dict[str, Attention]:
        """The target's and the drafter's."""
        return get_layers_from_vllm_config(self.vllm_config, Attention)

    def _allocate_scratch(self) -> StepMemory:
        """Before vLLM's memory profile, which gives what is left to the KV cache."""
        rows = min(self.max_num_reqs * (self.num_spec_tokens + 1), self.max_num_tokens)
        layers, drafter = self._attention_layers(), self.tree_drafter
        draft = [layers.pop(name) for name in self.drafter._draft_attn_layer_names]
        for layer in layers.values():
            layer.impl.scratch = LayerScratch.empty(layer, rows, self.device)
        drafter.allocate_scratch()
        memory = StepMemory(
            target=ScratchSize.of(layers.values()),
            drafter=ScratchSize.of(draft),
            target_logits=(rows, self.model_config.get_vocab_size()),
            head_logits=(
                self.max_num_reqs * drafter.width,
                drafter.model.logits_processor.vocab_size,
            ),
            dtype=self.dtype,
        )
        # All that vLLM 0.23 counts of what a GPU holds before its profile run.
        if hasattr(self, "model_memory_usage"):
            self.model_memory_usage += memory.scratch_bytes
        return memory

    def _prepare_kernels(self) -> None:
        """Compile at start-up what the step will call."""
        tree_attention.prepare(self.attention, self.dtype)
        for op in KERNELS:
            op.prepare(self.implementation)

    def initialize_kv_cache(self, *args: Any, **kwargs: Any) -> None:
        """On a GPU twice: a small cache to profile CUDA graphs with, then the real one."""
        self._forget_pages()
        super().initialize_kv_cache(*args, **kwargs)
        self.tree_layers = self._tree_layers()
        for _, layer in self.tree_layers:
            refuse_window(layer)
        layers = self._attention_layers()
        for spec in self.kv_cache_config.kv_cache_groups:
            for name in spec.layer_names:
                require_readable_pages(layers[name])

    def _cleanup_profiling_kv_cache(self) -> None:
        self._forget_pages()
        super()._cleanup_profiling_kv_cache()

    def _forget_pages(self) -> None:
        """Before vLLM frees or replaces its KV cache: our views would keep the memory."""
        self.commit_layers = {}
        for layer in self._attention_layers().values():
            if isinstance(layer.impl, TreeAttentionMixin):
                layer.impl.forget_pages()

    def tabulate_commits(self) -> None:
        """What one launch commits; nothing where layers write by themselves."""
        if self.strided_pages and not self.reference_mode:
            self.commit_layers = self._commit_layers()

    def _tree_layers(self) -> list[tuple[int, Attention]]:
        """The target's attention layers, each with its KV cache group."""
        context = self.compilation_config.static_forward_context
        draft_layers = self.drafter._draft_attn_layer_names
        return [
            (group, context[name])
            for group, spec in enumerate(self.kv_cache_config.kv_cache_groups)
            for name in spec.layer_names
            if name not in draft_layers
        ]

    def _commit_layers(self) -> dict[int, list[kv_commit.CommitLayers]]:
        """By KV cache group, one launch for all layers of one layout."""
        groups: dict[int, list[Attention]] = {}
        for group, layer in self.tree_layers:
            groups.setdefault(group, []).append(layer)
        return {
            group: kv_commit.CommitLayers.by_layout(
                keys=[layer.impl.scratch.key for layer in layers],
                values=[layer.impl.scratch.value for layer in layers],
                pages=[layer.impl.pages(layer, layer.kv_cache) for layer in layers],
            )
            for group, layers in groups.items()
        }

    def _update_states(self, scheduler_output: Any) -> Any:
        for req_id in scheduler_output.finished_req_ids:
            self.trees.pop(req_id, None)
        return super()._update_states(scheduler_output)

    def _prepare_inputs(self, scheduler_output: Any, num_scheduled_tokens: Any) -> Any:
        prepared = super()._prepare_inputs(scheduler_output, num_scheduled_tokens)
        self.tree_step = self._place_trees(scheduler_output)
        if self.tree_step is not None:
            self.steps += 1
            if self.reference_mode or self.steps % CHECK_EVERY == 0:
                self._check_trees(self.tree_step, scheduler_output.scheduled_spec_decode_tokens)
            self._write_tree_rows(self.tree_step)
        return prepared

    def _place_trees(self, scheduler_output: Any) -> TreeStep | None:
        drafts = scheduler_output.scheduled_spec_decode_tokens
        starts = self.query_start_loc.np
        index_of = self.input_batch.req_id_to_index
        placed = sorted((index_of[req_id], req_id) for req_id, ids in drafts.items() if ids)
        num_reqs = self.input_batch.num_reqs
        rows = int(starts[num_reqs])
        tables = self.input_batch.block_table.block_tables
        self.linear_slots = {gid: t.slot_mapping.gpu[:rows].clone() for gid, t in enumerate(tables)}
        if not placed:
            return None
        logit_counts = [1] * num_reqs
        for index, req_id in placed:
            logit_counts[index] = len(drafts[req_id]) + 1
        requests = [index for index, _ in placed]
        return lay_out(
            trees=[self._tree_of(req_id, drafts[req_id]) for _, req_id in placed],
            requests=requests,
            counts=[logit_counts[index] for index in requests],
            first_rows=[int(starts[index]) for index in requests],
            prefix_lens=[int(self.input_batch.num_computed_tokens_cpu[i]) for i in requests],
            logit_counts=logit_counts,
            linear_positions=self.positions[:rows].clone(),
            linear_slots=self.linear_slots,
        )

    def _tree_of(self, req_id: str, scheduled: list[int]) -> StoredTree:
        """The tree behind the tokens that the scheduler sent for a request."""
        if scheduled[0] != NO_DRAFT:
            return self.trees[req_id]
        # vLLM 0.32 pads a new request of one uncomputed token to the rows of a drafted one.
        index = self.input_batch.req_id_to_index[req_id]
        root = int(self.input_batch.num_computed_tokens_cpu[index])
        token = self.requests[req_id].get_token_id(root)
        return StoredTree.bare_root(
            token, len(scheduled) + 1, self.tree_config.shape(), self.positions.device
        )

    def _write_tree_rows(self, step: TreeStep) -> None:
        """Nodes stand at their depth behind the prefix, and their K/V stays out of the pages."""
        positions = step.tree.positions(step.prefix_len)
        self.positions.index_copy_(0, step.batch_rows, step.scheduled(positions))
        for table in self.input_batch.block_table.block_tables:
            table.slot_mapping.gpu.index_fill_(0, step.node_rows, -1)

    def _check_trees(self, step: TreeStep, scheduled: dict[str, list[int]]) -> None:
        """The trees are trees, and of the tokens that the scheduler sent."""
        step.tree.check()
        for row, request in enumerate(step.host_requests):
            tokens = scheduled[self.input_batch.req_ids[request]]
            drafted = step.tree.tokens[row, 1 : len(tokens) + 1].tolist()
            assert drafted == tokens or set(tokens) == {NO_DRAFT}, (
                "tree: the scheduled tokens are the drafted ones"
            )

    def _build_attention_metadata(self, *args: Any, **kwargs: Any) -> Any:
        attn_metadata, common = super()._build_attention_metadata(*args, **kwargs)
        if self.tree_step is not None:
            self._attach_trees(attn_metadata, self.tree_step)
        return attn_metadata, common

    def _attach_trees(self, attn_metadata: dict[str, Any], step: TreeStep) -> None:
        """Give the target's attention layers the step's trees."""
        first_row, counts = step.first_row.int(), step.counts.int()
        rows_of_group = {
            group: VerifyRows(
                block_table=self._block_table(group, step.requests),
                prefix_len=step.prefix_len.int(),
                query_start=first_row,
                query_count=counts,
                key_start=first_row,
                key_count=counts,
                visible=step.tree.visible,
                implementation=self.attention,
                covers_batch=step.covers_batch,
                batch_rows=step.batch_rows,
            )
            for group in {group for group, _ in self.tree_layers}
        }
        for group, layer in self.tree_layers:
            attn_metadata[layer.layer_name].tree = rows_of_group[group]

    def _block_table(self, group: int, requests: torch.Tensor) -> torch.Tensor:
        return self.input_batch.block_table[group].block_table.gpu.index_select(0, requests)

    def _sample(self, logits: Any, spec_decode_metadata: Any) -> SamplerOutput:
        params = RequestSampling.of_step(self.input_batch)
        step = self.tree_step
        if step is None:
            return self.sampler(logits=logits, sampling_metadata=params.by_request())
        counts, most_rows = step.logit_counts, self._rows_per_draw()
        draws = draw(self.sampler, logits, params, counts, step.links, most_rows)
        logit_rows = step.logit_rows()
        step.draws = draws.tokens[logit_rows]
        step.paths = tree_accept.tree_accept(
            step.tree, step.draws, self._depth(), implementation=self.implementation
        )
        if self.reference_mode:
            step.paths.check(step.tree, step.draws)
        self._commit(step, step.paths)
        return self._emit(step, step.paths, draws, logit_rows)

    def _rows_per_draw(self) -> int:
        return rows_at_a_time(self.max_num_reqs, self.model_config.get_vocab_size())

    def _dummy_sampler_run(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """vLLM's profile sees a step's largest call of the sampler, beside the logits it keeps."""
        most = min(self._rows_per_draw(), self.max_num_reqs * (self.num_spec_tokens + 1))
        rows = max(hidden_states.shape[0], min(most, self.max_num_tokens))
        logits = self.step_memory.logits(self.device)
        # vLLM draws states of its own; it takes the shape from these.
        states = hidden_states.new_empty(rows, hidden_states.shape[1])
        output = super()._dummy_sampler_run(states)
        del logits
        return output

    def _depth(self) -> int:
        return self.tree_config.shape().depth

    def _commit(self, step: TreeStep, paths: AcceptedPaths) -> None:
        """Write the accepted nodes' K/V from the scratch to their slots."""
        step.commit_slots = {
            group: kv_commit.commit_slots(
                paths, step.slots_by_position(group), step.tree.rows, self.implementation
            )
            for group in {group for group, _ in self.tree_layers}
        }
        slots_of_group = {g: step.scheduled(slots) for g, slots in step.commit_slots.items()}
        for group, layouts in self.commit_layers.items():
            for layers in layouts:
                kv_commit.commit_pages(layers, slots_of_group[group], self.implementation)
        if self.commit_layers:
            return
        for group, layer in self.tree_layers:
            scratch, slots = layer.impl.scratch, slots_of_group[group]

            def write(key, value, slots, layer=layer):
                layer.impl.do_kv_cache_update(layer, key, value, layer.kv_cache, slots)

            count = slots.shape[0]
            kv_commit.kv_commit(
                scratch.key[:count],
                scratch.value[:count],
                slots,
                write,
                check=self.reference_mode,
            )

    def _emit(
        self, step: TreeStep, paths: AcceptedPaths, draws: Draws, logit_rows: torch.Tensor
    ) -> SamplerOutput:
        """vLLM's form: `[B, D+1]` token ids, left-aligned, -1 padded."""
        if step.covers_batch:
            output, rows = paths.output, logit_rows.gather(1, paths.rows)
        else:
            rows = step.first_logits[:, None].repeat(1, paths.output.shape[1])
            output = torch.full_like(rows, -1)
            output[:, 0] = draws.tokens[step.first_logits]
            output[step.requests] = paths.output
            rows[step.requests] = logit_rows.gather(1, paths.rows)
        return SamplerOutput(
            sampled_token_ids=output.int(), logprobs_tensors=draws.logprobs_of(rows)
        )

    def _input_fits_in_drafter(self, common_attn_metadata: Any) -> bool:
        """Always: the drafter leaves out single requests, where vLLM leaves out the batch."""
        return common_attn_metadata is not None

    def propose_draft_token_ids(
        self,
        scheduler_output: Any,
        sampled_token_ids: Any,
        sampling_metadata: Any,
        hidden_states: Any,
        sample_hidden_states: Any,
        aux_hidden_states: Any,
        spec_decode_metadata: Any,
        common_attn_metadata: Any,
        slot_mappings: Any,
    ) -> list[list[int]]:
        """Draft the next tree of every request; `[]` for requests that go without."""
        count = scheduler_output.total_num_scheduled_tokens
        aux = aux_hidden_states if self.use_aux_hidden_state_outputs else [hidden_states]
        drafted = self.tree_drafter.propose(
            sampled_token_ids, [hidden[:count] for hidden in aux], common_attn_metadata
        )
        self.tree_step = None
        return self._store_trees(drafted)

    def _store_trees(self, drafted: DraftedTrees | None) -> list[list[int]]:
        """Keep the trees for the step that verifies them; their tokens, for the scheduler.

        Where a step waits for the device: the scheduler needs the tokens on the host.
        """
        tokens: list[list[int]] = [[] for _ in range(self.input_batch.num_reqs)]
        if drafted is None:
            return tokens
        rows = drafted.tree.tokens.where(drafted.tree.valid, -1)[:, 1:].tolist()
        for row, (request, nodes) in enumerate(zip(drafted.requests, rows, strict=True)):
            tokens[request] = [token for token in nodes if token >= 0]
            req_id = self.input_batch.req_ids[request]
            self.trees[req_id] = StoredTree(drafted.tree, row, len(tokens[request]), drafted.shape)
        return tokens
