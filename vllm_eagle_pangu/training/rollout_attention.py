# SPDX-License-Identifier: Apache-2.0
"""Attention of one training-time-test step, all anchors at once.

Rollout step k of the anchor at position t drafts from position t + k. It may see what it would
see when drafting for real: the keys that true hidden states gave for positions 0..t (step 0),
and its own earlier keys, one per step: those of steps 1..k *of the same anchor*. So step 0
needs a causal matrix, over the answers that a row packs, and each later step one diagonal.
"""

from __future__ import annotations

import torch
from torch import Tensor


def causal_mask(document: Tensor) -> Tensor:
    """document: [B, A] -> [B, A, A], 0 where a row sees a key: its own and those before it of the
    same document; else -inf."""
    alien = document[:, :, None] != document[:, None, :]
    future = torch.ones_like(alien).triu(1)
    return torch.zeros(alien.shape, device=alien.device).masked_fill(alien | future, float("-inf"))


def rollout_attention(
    query: Tensor, keys: tuple[Tensor, ...], values: tuple[Tensor, ...], hidden: Tensor
) -> Tensor:
    """Attend from step k = len(keys) - 1; row t belongs to the anchor at position t.

    Args:
        query: [B, H, A, D], rotated for positions k .. k + A - 1.
        keys: one [B, H_kv, A, D] per step 0..k, rotated; row t of step i has position t + i.
        values: like keys.
        hidden: [B, A, A], -inf where a row must not see a key of step 0, else 0: `causal_mask`.

    Returns:
        [B, H, A, D]
    """
    batch, heads, anchors, dim = query.shape
    kv_heads = keys[0].shape[1]
    grouped = (query * dim**-0.5).reshape(batch, kv_heads, -1, anchors, dim)
    scores = grouped.flatten(2, 3) @ keys[0].mT
    scores = scores.view(batch, kv_heads, -1, anchors, anchors)
    scores = scores + hidden[:, None, None].to(scores.dtype)
    if len(keys) > 1:
        own = [(grouped * key[:, :, None]).sum(-1, keepdim=True) for key in keys[1:]]
        scores = torch.cat([scores, *own], dim=-1)
    weights = torch.softmax(scores, dim=-1).to(values[0].dtype)
    context = weights[..., :anchors].flatten(2, 3) @ values[0]
    mixed = context.view(batch, kv_heads, -1, anchors, dim)
    for step, value in enumerate(values[1:]):
        mixed = mixed + weights[..., anchors + step, None] * value[:, :, None]
    return mixed.reshape(batch, heads, anchors, dim)
