# SPDX-License-Identifier: Apache-2.0
"""Draft candidates to trees."""

import torch

from vllm_eagle_pangu.kernels.implementations import Implementations
from vllm_eagle_pangu.kernels.tree_build.trees import Trees
from vllm_eagle_pangu.kernels.tree_expand.frontier import level_slice

__all__ = ["Trees", "prepare", "tree_build"]

_OP = Implementations(__name__, "tree_build")
prepare = _OP.prepare


def tree_build(
    root_tokens: torch.Tensor,
    tokens: torch.Tensor,
    scores: torch.Tensor,
    parents: torch.Tensor,
    width: int,
    depth: int,
    nodes: int,
    implementation: str | None = None,
) -> Trees:
    """Keep the M = `nodes` best candidates of each request, closed under ancestors.

    Equal scores go to the lower index, NaN counts as -inf, and -inf is never kept. A child's score
    is first lowered to its parent's. Nodes come in candidate order.

    `root_tokens: [B] int64`; `tokens: [B, C] int64`, `scores: [B, C] float32` cumulative
    log-probabilities, `parents: [B, C] int64`: C candidates of trees of `width` and `depth`, level
    by level; a parent is 0 for the root, else 1 + the index of a candidate of the level above.

    Raises:
        ValueError: `implementation` names none of the op's; None is the device's own.
    """
    assert tokens.shape[1] == level_slice(width, depth).stop, (tokens.shape, width, depth)
    assert 1 <= nodes <= tokens.shape[1], (tokens.shape, nodes)
    run = _OP.of(implementation, tokens.device)
    return run(root_tokens, tokens, scores, parents, width, depth, nodes)
