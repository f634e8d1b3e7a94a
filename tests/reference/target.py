# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face target with EAGLE-3 taps."""

from functools import partial
from pathlib import Path

import torch
from transformers import DynamicCache

from vllm_eagle_pangu.models.pangu_as_llama import load_target


class ReferenceTarget:
    """openPangu Embedded, Llama or Qwen3 in transformers, with eager attention.

    `taps`: layer indices; tap i is what enters layer i, and for i = number of layers what enters
    the final norm.
    """

    def __init__(self, folder: str | Path, dtype: torch.dtype = torch.float32) -> None:
        self._model = load_target(folder, dtype)
        self._model.set_attn_implementation("eager")
        self._dtype = dtype
        # What entered each layer, and the final norm, in the last forward.
        self._entered: dict[int, torch.Tensor] = {}
        inner = self._model.model
        for index, module in enumerate([*inner.layers, inner.norm]):
            module.register_forward_pre_hook(partial(self._enter, index), with_kwargs=True)
        layers = len(inner.layers)
        # vLLM's default, and like vLLM without duplicates and in layer order.
        self.taps: tuple[int, ...] = tuple(sorted({2, layers // 2, layers - 3}))

    @property
    def embedding(self) -> torch.Tensor:
        """`[V, H]`."""
        return self._model.get_input_embeddings().weight.detach()

    @property
    def output(self) -> torch.Tensor:
        """`[V, H]`."""
        return self._model.get_output_embeddings().weight.detach()

    @torch.no_grad()
    def forward(
        self,
        # [B, N] int64
        tokens: torch.Tensor,
        # [B, N] int64
        positions: torch.Tensor,
        cache: DynamicCache,
        # [N, N] bool: which of these rows a row attends; None means causal
        visible: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append the rows to `cache`; returns logits `[B, N, V] float32` and taps
        `[B, N, taps*H]`. Every row attends all that the cache held before.
        """
        mask = None if visible is None else self._additive(visible, cache.get_seq_length())
        logits = self._model(
            input_ids=tokens,
            position_ids=positions,
            past_key_values=cache,
            attention_mask=mask,
            use_cache=True,
        ).logits
        return logits.float(), torch.cat([self._entered[tap] for tap in self.taps], dim=-1)

    def logits(self, tokens: list[int]) -> torch.Tensor:
        """After each token of a text: `[N, V] float32`."""
        positions = torch.arange(len(tokens))[None]
        return self.forward(torch.tensor([tokens]), positions, DynamicCache())[0][0]

    def _enter(self, index: int, _module, args, kwargs) -> None:
        self._entered[index] = args[0] if args else kwargs["hidden_states"]

    def _additive(self, visible: torch.Tensor, prefix: int) -> torch.Tensor:
        rows = visible.shape[0]
        seen = torch.cat([torch.ones(rows, prefix, dtype=torch.bool), visible], dim=1)
        mask = torch.zeros(seen.shape, dtype=self._dtype)
        return mask.masked_fill(~seen, torch.finfo(self._dtype).min)[None, None]
