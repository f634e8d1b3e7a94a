# SPDX-License-Identifier: Apache-2.0
"""tree_accept as one C++ op (cpu/tree_accept.cpp): the walk is too short to pay for torch ops."""

import torch

from vllm_eagle_pangu.kernels.native import NativeOp
from vllm_eagle_pangu.kernels.tree_accept.reference import AcceptedPaths

_run = NativeOp(__file__, "tree_accept", "@7P3q")
prepare = _run.prepare


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
    paths = AcceptedPaths.empty(shape[0], depth, draws.device)
    _run(tokens, parent, valid, draws, *vars(paths).values(), *shape, depth)
    return paths
