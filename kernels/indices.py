# SPDX-License-Identifier: Apache-2.0
"""Constant tensors of the hot path, made once per size and device. Never write to them."""

import functools

import torch
from torch.nn.functional import pad


@functools.lru_cache(maxsize=256)
def index_range(size: int, device: torch.device) -> torch.Tensor:
    """`[size] int64`: 0, 1, ..., size - 1."""
    return torch.arange(size, device=device)


@functools.lru_cache(maxsize=1024)
def filled(value: int, shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """`shape`, int64: `value` everywhere."""
    return torch.full(shape, value, device=device)


@functools.lru_cache(maxsize=1024)
def spans(
    batch: int, count: int, apart: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """`[batch] int32` each: where spans start, `apart` from each other, and `count` everywhere."""
    starts = index_range(batch, device).int() * apart
    return starts, torch.full_like(starts, count)


@functools.lru_cache(maxsize=64)
def identity(width: int, device: torch.device) -> torch.Tensor:
    """`[width, width] bool`, true on the diagonal."""
    return torch.eye(width, dtype=torch.bool, device=device)


@functools.lru_cache(maxsize=64)
def causal(size: int, device: torch.device) -> torch.Tensor:
    """`[size, size] bool`: row i sees rows 0 to i."""
    return torch.ones(size, size, dtype=torch.bool, device=device).tril()


@functools.lru_cache(maxsize=64)
def candidate_levels(width: int, depth: int, device: torch.device) -> torch.Tensor:
    """`[C + 2] int64`: depth of the root, of each candidate in level order, and 0 for padding."""
    square = width**2
    candidate = torch.arange(width + (depth - 1) * square, device=device)
    return pad((candidate - width).div(square, rounding_mode="floor") + 2, (1, 1))
