# SPDX-License-Identifier: Apache-2.0
"""The EAGLE-3 head: one Llama layer over the target's hidden states.

Arithmetic and weight names follow vLLM's `model_executor/models/llama_eagle3.py` with
`norm_before_residual` and `norm_output` off: the residual is the raw hidden state, and the
next draft step is fed the state *before* the final norm.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vllm_eagle_pangu.training.rollout_attention import rollout_attention


@dataclass(frozen=True)
class HeadShape:
    """Sizes of a head; `taps` are layer counts: tap 2 is the residual stream after two layers."""

    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int
    taps: tuple[int, ...]
    rope_theta: float
    max_positions: int
    rms_norm_eps: float


@dataclass
class RolloutKeys:
    """Rotated keys and values of the rollout steps so far, each [B, H_kv, A, D].

    `hidden`: [B, A, A], what step 0 must not see, by `causal_mask`.
    """

    hidden: Tensor
    keys: tuple[Tensor, ...] = ()
    values: tuple[Tensor, ...] = ()

    def with_step(self, key: Tensor, value: Tensor) -> RolloutKeys:
        return RolloutKeys(self.hidden, (*self.keys, key), (*self.values, value))


class RmsNorm(nn.Module):
    """Root-mean-square norm, computed in float32 whatever the input's dtype."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, rows: Tensor) -> Tensor:
        wide = rows.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * self.weight).to(rows.dtype)


class DraftAttention(nn.Module):
    """Attention whose inputs are twice as wide: normed embedding beside normed hidden state."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.head_dim = shape.head_dim
        queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.q_proj = nn.Linear(2 * shape.hidden_size, queries, bias=False)
        self.k_proj = nn.Linear(2 * shape.hidden_size, keys, bias=False)
        self.v_proj = nn.Linear(2 * shape.hidden_size, keys, bias=False)
        self.o_proj = nn.Linear(queries, shape.hidden_size, bias=False)

    def forward(
        self, rows: Tensor, rotary: tuple[Tensor, Tensor], past: RolloutKeys
    ) -> tuple[Tensor, RolloutKeys]:
        """rows: [B, A, 2H] -> [B, A, H], and `past` with this step's keys."""
        query = _rotate(self._split(self.q_proj(rows)), *rotary)
        key = _rotate(self._split(self.k_proj(rows)), *rotary)
        seen = past.with_step(key, self._split(self.v_proj(rows)))
        mixed = rollout_attention(query, seen.keys, seen.values, seen.hidden)
        return self.o_proj(mixed.transpose(1, 2).flatten(2)), seen

    def _split(self, flat: Tensor) -> Tensor:
        return flat.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


class DraftMlp(nn.Module):
    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, rows: Tensor) -> Tensor:
        return self.down_proj(nn.functional.silu(self.gate_proj(rows)) * self.up_proj(rows))


class DraftLayer(nn.Module):
    """The head's only layer (`midlayer` in checkpoints)."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.self_attn = DraftAttention(shape)
        self.mlp = DraftMlp(shape)
        self.input_layernorm = RmsNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.hidden_norm = RmsNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.post_attention_layernorm = RmsNorm(shape.hidden_size, eps=shape.rms_norm_eps)

    def forward(
        self, embeds: Tensor, hidden: Tensor, rotary: tuple[Tensor, Tensor], past: RolloutKeys
    ) -> tuple[Tensor, RolloutKeys]:
        """embeds, hidden: [B, A, H] -> state before the final norm [B, A, H], seen keys."""
        rows = torch.cat([self.input_layernorm(embeds), self.hidden_norm(hidden)], dim=-1)
        mixed, seen = self.self_attn(rows, rotary, past)
        residual = hidden + mixed
        return residual + self.mlp(self.post_attention_layernorm(residual)), seen


class EagleHead(nn.Module):
    """EAGLE-3 head without its embedding, which is the target's."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.shape = shape
        taps_size = shape.target_hidden_size * len(shape.taps)
        self.fc = nn.Linear(taps_size, shape.hidden_size, bias=False)
        self.midlayer = DraftLayer(shape)
        self.norm = RmsNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.lm_head = nn.Linear(shape.hidden_size, shape.draft_vocab_size, bias=False)

    def advance(
        self, embeds: Tensor, hidden: Tensor, positions: Tensor, past: RolloutKeys
    ) -> tuple[Tensor, Tensor, RolloutKeys]:
        """One pass of the layer over A rows per sequence.

        Args:
            embeds: [B, A, H] embedding of the token after each row's position.
            hidden: [B, A, H] combined taps (first pass) or the previous pass's states.
            positions: [A] rotary positions.
            past: keys of earlier rollout steps of the same rows.

        Returns:
            states for the next pass [B, A, H], normed states for `lm_head` [B, A, H], and the
            keys with this pass's added.
        """
        rotary = rotary_angles(positions, self.shape.head_dim, self.shape.rope_theta)
        state, seen = self.midlayer(embeds, hidden, rotary, past)
        return state, self.norm(state), seen


def rotary_angles(positions: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """positions: [A] -> cos and sin, each [A, D] float32 (halves repeated, as in Llama)."""
    exponents = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32)
    angles = positions[:, None].float() * theta ** (-exponents / head_dim)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def _rotate(vectors: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """vectors: [B, H, A, D]; cos, sin: [A, D]."""
    first, second = vectors.chunk(2, dim=-1)
    turned = torch.cat([-second, first], dim=-1)
    return (vectors * cos + turned * sin).to(vectors.dtype)
