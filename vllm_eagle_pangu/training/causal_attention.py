# SPDX-License-Identifier: Apache-2.0
"""Grouped-query causal attention written out, for training on CPU.

torch's fused CPU attention is slow backwards; the plain form, once compiled, takes 40 % of its
time at lengths of some hundreds.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

NAME = "vllm_eagle_pangu_causal"


def causal_attention(query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
    """The query rows belong to the last T positions of the S keys.

    query: [B, H, T, D], key and value: [B, H_kv, S, D] -> [B, H, T, D].
    """
    batch, heads, length, dim = query.shape
    kv_heads, keys = key.shape[1], key.shape[2]
    grouped = (query * scaling).reshape(batch, kv_heads, heads // kv_heads * length, dim)
    scores = (grouped @ key.mT).view(batch, kv_heads, heads // kv_heads, length, keys)
    if length > 1:
        future = torch.full((length, keys), float("-inf"), dtype=query.dtype, device=query.device)
        scores = scores + future.triu(1 + keys - length)
    weights = torch.softmax(scores, dim=-1)
    mixed = weights.reshape(batch, kv_heads, -1, keys).to(value.dtype) @ value
    return mixed.view(batch, heads, length, dim)


def _attention_for_transformers(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    **_: Any,
) -> tuple[Tensor, None]:
    """Signature of transformers' AttentionInterface; the mask is always the causal one."""
    return causal_attention(query, key, value, scaling).transpose(1, 2).contiguous(), None


def register() -> str:
    """Make `attn_implementation=NAME` known to transformers; returns the name."""
    AttentionInterface.register(NAME, _attention_for_transformers)
    return NAME
