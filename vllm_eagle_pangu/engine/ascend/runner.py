# SPDX-License-Identifier: Apache-2.0
"""The tree step inside vllm-ascend's model runner.

`NPUModelRunner` overrides nearly all of vLLM's V1 runner, mostly with other signatures. Those that
`TreeRunnerMixin` hands on as they come (`_prepare_inputs`, `_build_attention_metadata`) may
differ; those that it reads are translated here.
"""

from typing import TYPE_CHECKING, Any, NoReturn

import torch
from vllm_ascend.spec_decode import AscendEagleProposer
from vllm_ascend.worker.model_runner_v1 import NPUModelRunner

from vllm_eagle_pangu.compat.lent import lent
from vllm_eagle_pangu.config import refusal
from vllm_eagle_pangu.engine.ascend.draft_head import AscendDraftHead
from vllm_eagle_pangu.engine.runner import TreeRunnerMixin
from vllm_eagle_pangu.env import DISABLE_NPU_FUSED, npu_attention
from vllm_eagle_pangu.kernels.tree_attention.npu_limits import AttentionLayer, refuse_beyond_limits

if TYPE_CHECKING:
    from vllm.forward_context import BatchDescriptor
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.sample.metadata import SamplingMetadata
    from vllm.v1.spec_decode.metadata import SpecDecodeMetadata
    from vllm_ascend.attention.utils import AscendCommonAttentionMetadata


class TreeAscendProposer(AscendEagleProposer):
    """The loader of the head and owner of its groups, of the class that vllm-ascend's runner
    asserts; trees are drafted by `step.draft`."""

    def _propose(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise AssertionError("a chain would be drafted where the runner drafts trees")

    def dummy_run(self, *args: Any, **kwargs: Any) -> None:
        """One pass over as many rows, where vllm-ascend's makes one for each drafted token."""
        with lent(self, num_speculative_tokens=1):
            super().dummy_run(*args, **kwargs)


class TreeNPUModelRunner(TreeRunnerMixin, NPUModelRunner):
    """vllm-ascend's runner plus the tree step: attention by Ascend's operators, the rest in torch.

    Triton's implementations are lowered for the NPU in tests/ascend_lowering, and were never run.
    """

    device_implementation = "reference"

    def attention_implementation(self) -> str:
        """See `TreeRunnerMixin`: Ascend's own operators, unless switched off."""
        return "reference" if self.reference_mode else npu_attention()

    def load_head(self) -> AscendDraftHead:
        """See `TreeRunnerMixin`."""
        return AscendDraftHead(self.drafter, self.ops)

    def initialize_kv_cache(self, *args: Any, **kwargs: Any) -> None:
        """Raises ValueError for a layer beyond the limits of Ascend's operators."""
        super().initialize_kv_cache(*args, **kwargs)
        if self.ops.attention == "reference":
            return
        for name, layer in self._attention_layers().items():
            window = layer.impl.window or self.tree_config.drafter_window
            if window is not None and layer.layer_name in self.drafter._draft_attn_layer_names:
                raise refusal(
                    "drafter_window",
                    window,
                    f"Ascend's operators take no window beside a tree's mask ({name})",
                    f"leave it out, or set {DISABLE_NPU_FUSED}=1",
                )
            pages = layer.impl.pages(layer, layer.kv_cache)
            sizes = AttentionLayer(
                layer.num_heads,
                layer.num_kv_heads,
                layer.head_size,
                pages.shape[2],
                pages.key.dtype,
            )
            refuse_beyond_limits(self.ops.attention, sizes, self.max_num_reqs)

    def _get_drafter(self) -> TreeAscendProposer:
        return TreeAscendProposer(self.vllm_config, self.device, self)

    def propose_draft_token_ids(  # type: ignore[override]
        self,
        valid_sampled_token_ids: torch.Tensor,
        sampling_metadata: "SamplingMetadata",
        scheduler_output: "SchedulerOutput",
        spec_decode_metadata: "SpecDecodeMetadata | None",
        spec_decode_common_attn_metadata: "AscendCommonAttentionMetadata",
        positions: torch.Tensor,
        num_scheduled_tokens: int,
        hidden_states: torch.Tensor,
        aux_hidden_states: list[torch.Tensor] | None,
        sample_hidden_states: torch.Tensor,
        target_model_batch_desc: "BatchDescriptor",
    ) -> list[list[int]]:
        """See `TreeRunnerMixin`: vllm-ascend gives the same in another order, by position."""
        return super().propose_draft_token_ids(
            scheduler_output,
            valid_sampled_token_ids,
            sampling_metadata,
            hidden_states,
            sample_hidden_states,
            aux_hidden_states,
            spec_decode_metadata,
            spec_decode_common_attn_metadata,
            slot_mappings=None,
        )
