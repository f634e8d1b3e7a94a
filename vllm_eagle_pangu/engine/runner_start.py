# SPDX-License-Identifier: Apache-2.0
"""What a tree runner makes, takes memory for and measures before its first step."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from vllm.config import get_layers_from_vllm_config
from vllm.logger import init_logger
from vllm.model_executor.layers.attention import Attention

from vllm_eagle_pangu.config import tree_config
from vllm_eagle_pangu.core.adaptive import AdaptiveShapes
from vllm_eagle_pangu.core.ops import Ops
from vllm_eagle_pangu.core.policy import TreePolicy
from vllm_eagle_pangu.core.prices import row_counts
from vllm_eagle_pangu.engine.draft_head import DraftHead
from vllm_eagle_pangu.engine.forward_profile import forward_seconds, run_once
from vllm_eagle_pangu.engine.head_fit import tensor_shapes
from vllm_eagle_pangu.engine.head_parallel import drafts_in_parallel, keeping_mask
from vllm_eagle_pangu.engine.learnt_file import LearntFile, learnt_file
from vllm_eagle_pangu.engine.loaded_layers import (
    require_readable_pages,
    require_tree_attention,
)
from vllm_eagle_pangu.engine.step_memory import StepMemory
from vllm_eagle_pangu.engine.target_pages import TargetPages
from vllm_eagle_pangu.env import forced_eager_attention
from vllm_eagle_pangu.kernels.tree_prune import tree_prune
from vllm_eagle_pangu.step.checks import Checks
from vllm_eagle_pangu.step.drafter import Eagle3Drafter
from vllm_eagle_pangu.step.grow import GrowShape, grow_shape
from vllm_eagle_pangu.step.head import Limits
from vllm_eagle_pangu.step.rows import LayerScratch
from vllm_eagle_pangu.step.stages import Stages
from vllm_eagle_pangu.step.step import Step

if TYPE_CHECKING:
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner
else:
    # A platform's runner stands behind the mixin; naming one here would load it on every platform.
    GPUModelRunner = object

logger = init_logger(f"vllm.{__name__}")

# Rows x vocabulary that one call of the sampler may hold however few requests vLLM was told of:
# 32 MB a float32 copy, against a call (0.1 ms) more for every few rows.
HOLD = 2**23


class TreeRunnerStart(GPUModelRunner):
    """The part of `TreeRunnerMixin` that vLLM calls before there are requests.

    `device_implementation`: which implementation of the kernels the platform runs.
    `strided_pages`: whether one call of `commit_pages` can write its KV pages, of all layers;
    otherwise each layer writes with vLLM's own op.
    """

    device_implementation: ClassVar[str]
    strided_pages: ClassVar[bool] = False

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

    def _rows_per_draw(self) -> int:
        """The most of one call of the sampler; `_dummy_sampler_run` shows vLLM that many."""
        return max(self.max_num_reqs, HOLD // self.model_config.get_vocab_size())
