# SPDX-License-Identifier: Apache-2.0
"""tree_accept as one C++ op (cpu/tree_accept.cpp): the walk is too short to pay for torch ops."""

import functools
import struct
from collections.abc import Callable
from pathlib import Path

import torch

from vllm_eagle_pangu.kernels.native import load_call
from vllm_eagle_pangu.kernels.tree_accept.paths import AcceptedPaths

_CALL = struct.Struct("@7P3q")


def tree_accept(
    tokens: torch.Tensor,
    parent: torch.Tensor,
    valid: torch.Tensor,
    draws: torch.Tensor,
    depth: int,
) -> AcceptedPaths:
    """See `reference.tree_accept`; all on the CPU, any strides.

    Raises RuntimeError where the op cannot be compiled.
    """
    shape = draws.shape
    assert tokens.shape == parent.shape == valid.shape == shape, (tokens.shape, shape)
    assert draws.dtype == tokens.dtype == parent.dtype == torch.int64, draws.dtype
    assert valid.dtype == torch.bool, valid.dtype
    assert draws.is_cpu and tokens.is_cpu, "the cpp implementation takes CPU tensors"
    batch, rows = shape
    tokens, parent = tokens.contiguous(), parent.contiguous()
    valid, draws = valid.contiguous(), draws.contiguous()
    path = torch.empty(batch, depth + 1, dtype=torch.int64)
    output = torch.empty_like(path)
    length = torch.empty(batch, dtype=torch.int64)
    _entry()(
        _CALL.pack(
            tokens.data_ptr(),
            parent.data_ptr(),
            valid.data_ptr(),
            draws.data_ptr(),
            path.data_ptr(),
            length.data_ptr(),
            output.data_ptr(),
            batch,
            rows,
            depth,
        )
    )
    return AcceptedPaths(path, length, output)


@functools.cache
def _entry() -> Callable[[bytes], None]:
    """The C function; compiles the op unless an earlier process did."""
    return load_call("tree_accept", Path(__file__).parent / "cpu", _CALL)


prepare = _entry
