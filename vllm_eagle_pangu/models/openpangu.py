# SPDX-License-Identifier: Apache-2.0
"""vLLM's dense openPangu model with EAGLE-3 taps.

A tap of layer i is the residual stream that enters layer i (the embedding for i = 0, the last
layer's output before the final norm for i = number of layers), as in vLLM's Llama. With no taps
set, every call goes to vLLM's own code.
"""

from unittest.mock import patch

import torch
from vllm.compilation.decorators import support_torch_compile
from vllm.config import VllmConfig
from vllm.distributed import get_pp_group
from vllm.model_executor.models import openpangu
from vllm.model_executor.models.interfaces import EagleModelMixin, SupportsEagle3
from vllm.sequence import IntermediateTensors


@support_torch_compile
class TappedOpenPanguModel(openpangu.OpenPanguModel, EagleModelMixin):
    """`OpenPanguModel` that also returns the taps in `aux_hidden_state_layers`."""

    def forward(
        self,
        # [N] int64
        input_ids: torch.Tensor | None,
        # [N] int64
        positions: torch.Tensor,
        intermediate_tensors: IntermediateTensors | None,
        # [N, hidden]
        inputs_embeds: torch.Tensor | None = None,
    ) -> torch.Tensor | IntermediateTensors | tuple[torch.Tensor, list[torch.Tensor]]:
        if not self.aux_hidden_state_layers:
            return super().forward(input_ids, positions, intermediate_tensors, inputs_embeds)
        assert get_pp_group().world_size == 1, "taps are not passed between pipeline stages"

        # The loop of vLLM 0.32's OpenPanguModel.forward for a single pipeline stage, with taps.
        hidden_states = inputs_embeds
        if hidden_states is None:
            hidden_states = self.embed_input_ids(input_ids)
        residual = None
        taps: list[torch.Tensor] = []
        self._maybe_add_hidden_state(taps, 0, hidden_states, residual)
        for index, layer in enumerate(self.layers, start=1):
            hidden_states, residual = layer(positions, hidden_states, residual)
            self._maybe_add_hidden_state(taps, index, hidden_states, residual)
        hidden_states, _ = self.norm(hidden_states, residual)
        return hidden_states, taps


class PanguEmbeddedForCausalLM(openpangu.PanguEmbeddedForCausalLM, SupportsEagle3):
    """vLLM's `PanguEmbeddedForCausalLM` around a `TappedOpenPanguModel`."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        # vLLM's constructor names its inner class; building it a second time would register
        # the attention layers twice.
        with patch.object(openpangu, "OpenPanguModel", TappedOpenPanguModel):
            super().__init__(vllm_config=vllm_config, prefix=prefix)
