# SPDX-License-Identifier: Apache-2.0
"""tree_accept as one C++ op (cpu/tree_accept.cpp): the walk is too short to pay for torch ops."""

import struct

import torch

from vllm_eagle_pangu.kernels.native import addresses, native_op
from vllm_eagle_pangu.kernels.tree_accept.paths import AcceptedPaths

_CALL = struct.Struct("@7P3q")
prepare = _entry = native_op(__file__, "tree_accept", _CALL)


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
    tensors = addresses(tokens, parent, valid, draws, path, length, output)
    _entry()(_CALL.pack(*tensors, batch, rows, depth))
    return AcceptedPaths(path, length, output)
