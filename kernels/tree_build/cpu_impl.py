# SPDX-License-Identifier: Apache-2.0
"""tree_build as one C++ op (cpu/*.cpp)."""

import torch

from vllm_eagle_pangu.kernels.native import NativeOp
from vllm_eagle_pangu.kernels.tree_build.reference import Trees, check_sizes

# Fields of `Call` in cpu/tree_build.cpp.
_run = NativeOp(__file__, "tree_build", "@10P4q")
prepare = _run.prepare


def tree_build(
    root_tokens: torch.Tensor,
    tokens: torch.Tensor,
    scores: torch.Tensor,
    parents: torch.Tensor,
    width: int,
    depth: int,
    nodes: int,
) -> Trees:
    """See `reference.tree_build`; `parents` are trusted to be of an earlier candidate."""
    batch, capacity = tokens.shape
    check_sizes(capacity, width, depth, nodes)
    assert scores.shape == parents.shape == tokens.shape and root_tokens.shape == (batch,)
    assert root_tokens.dtype == tokens.dtype == parents.dtype == torch.int64
    assert scores.dtype == torch.float32, scores.dtype
    trees = Trees.empty(batch, nodes + 1, tokens.device)
    tensors = (root_tokens, tokens, scores, parents, *vars(trees).values())
    _run(*tensors, batch, capacity, width, nodes + 1)
    return trees
