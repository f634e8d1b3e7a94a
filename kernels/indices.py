# SPDX-License-Identifier: Apache-2.0
"""Constant tensors of the hot path, made once per size and device. Never write to them."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

import torch
from torch.nn.functional import pad

P = ParamSpec("P")
R = TypeVar("R")

# Where constants are held that were asked for, outermost first.
_holders: list[list[object]] = []


@contextmanager
def held() -> Iterator[list[object]]:
    """What is asked for meanwhile: a CUDA graph knows no more than its address, and the caches
    forget what others have not asked for of late."""
    asked: list[object] = []
    _holders.append(asked)
    try:
        yield asked
    finally:
        _holders.pop()


def constant(maxsize: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """So many results of a function are kept."""

    def keep(function: Callable[P, R]) -> Callable[P, R]:
        made = functools.lru_cache(maxsize)(function)

        @functools.wraps(function)
        def ask(*args: P.args, **kwargs: P.kwargs) -> R:
            found = made(*args, **kwargs)  # type: ignore[arg-type]
            for holder in _holders:
                holder.append(found)
            return found

        ask.cache_clear = made.cache_clear  # type: ignore[attr-defined]
        return ask

    return keep


@constant(maxsize=256)
def index_range(size: int, device: torch.device) -> torch.Tensor:
    """`[size] int64`: 0, 1, ..., size - 1."""
    return torch.arange(size, device=device)


@constant(maxsize=1024)
def filled(value: int, shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """`shape`, int64: `value` everywhere."""
    return torch.full(shape, value, device=device)


@constant(maxsize=1024)
def spans(
    batch: int, count: int, apart: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """`[batch] int32` each: where spans start, `apart` from each other, and `count` everywhere."""
    starts = index_range(batch, device).int() * apart
    return starts, torch.full_like(starts, count)


@constant(maxsize=64)
def identity(width: int, device: torch.device) -> torch.Tensor:
    """`[width, width] bool`, true on the diagonal."""
    return torch.eye(width, dtype=torch.bool, device=device)


@constant(maxsize=64)
def causal(size: int, device: torch.device) -> torch.Tensor:
    """`[size, size] bool`: row i sees rows 0 to i."""
    return torch.ones(size, size, dtype=torch.bool, device=device).tril()


@constant(maxsize=64)
def candidate_levels(width: int, depth: int, device: torch.device) -> torch.Tensor:
    """`[C + 2] int64`: depth of the root, of each candidate in level order, and 0 for padding."""
    square = width**2
    candidate = torch.arange(width + (depth - 1) * square, device=device)
    return pad((candidate - width).div(square, rounding_mode="floor") + 2, (1, 1))
