# SPDX-License-Identifier: Apache-2.0
"""The target as a head's teacher: hidden states at the taps, and next-token distributions."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from vllm_eagle_pangu.models.pangu_as_llama import load_pangu_as_llama
from vllm_eagle_pangu.models.registration import PANGU_ARCHITECTURE

SUPPORTED_ARCHITECTURES = (PANGU_ARCHITECTURE, "LlamaForCausalLM", "Qwen3ForCausalLM")


class Teacher:
    """A frozen target. Taps count layers: tap k is the residual stream after k layers."""

    def __init__(self, model: Any, taps: tuple[int, ...]) -> None:
        layers = model.config.num_hidden_layers
        if sorted(set(taps)) != list(taps) or taps[0] < 1 or taps[-1] > layers:
            raise ValueError(
                f"head.taps={list(taps)} must be ascending, distinct and in 1..{layers} "
                "(tap k is the state after k layers)"
            )
        self.model, self.taps = model.eval().requires_grad_(False), taps
        self.config, self.device = model.config, model.device
        self.embedding: nn.Embedding = model.get_input_embeddings()
        self.output_weight: Tensor = model.get_output_embeddings().weight  # [V, H_t]
        self._caught: dict[int, Tensor] = {}
        for tap in {*taps, layers}:
            model.model.layers[tap - 1].register_forward_hook(partial(self._catch, tap))

    @torch.no_grad()
    def read(self, tokens: Tensor) -> Tensor:
        """tokens: [B, T] -> [B, T, taps + 1, H], residual streams at taps and behind all layers.

        The last is not normed yet: `logits` does that.
        """
        self.model.model(input_ids=tokens, use_cache=False)
        taps = (*self.taps, self.config.num_hidden_layers)
        found = torch.stack([self._caught[tap] for tap in taps], dim=2)
        self._caught.clear()
        return found

    @torch.no_grad()
    def logits(self, last: Tensor) -> Tensor:
        """last: [..., H], behind all layers -> [..., V]."""
        return self.model.model.norm(last) @ self.output_weight.T

    def _catch(self, tap: int, _module: nn.Module, _inputs: Any, output: Any) -> None:
        self._caught[tap] = output[0] if isinstance(output, tuple) else output


def load_target(folder: Path, dtype: torch.dtype = torch.bfloat16) -> Any:
    """Load a target: openPangu Embedded, Llama or Qwen3, as a Hugging Face folder."""
    path = folder / "config.json"
    if not path.exists():
        raise ValueError(f"target={str(folder)!r} has no config.json: name a Hugging Face folder")
    architecture = (json.loads(path.read_text()).get("architectures") or ["none"])[0]
    if architecture == PANGU_ARCHITECTURE:
        return load_pangu_as_llama(folder, dtype)
    if architecture not in SUPPORTED_ARCHITECTURES:
        raise ValueError(
            f"target={str(folder)!r} is a {architecture}: "
            f"heads can be trained for {', '.join(SUPPORTED_ARCHITECTURES)}"
        )
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
