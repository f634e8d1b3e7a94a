# SPDX-License-Identifier: Apache-2.0
"""Trees and target draws to accepted paths."""

import torch

from vllm_eagle_pangu.kernels.implementations import Implementations
from vllm_eagle_pangu.kernels.tree_accept.paths import AcceptedPaths

__all__ = ["AcceptedPaths", "prepare", "tree_accept"]

_OP = Implementations(__name__, "tree_accept")
prepare = _OP.prepare


def tree_accept(
    tokens: torch.Tensor,
    parent: torch.Tensor,
    valid: torch.Tensor,
    draws: torch.Tensor,
    depth: int,
    implementation: str | None = None,
) -> AcceptedPaths:
    """Walk each tree from its root along the target's draws, at most `depth` nodes.

    Where the draw at a row is the token of one of its valid children (the lowest row, if several
    carry it), that child is accepted; otherwise the draw is the bonus token and the walk ends.

    `tokens`, `parent: [B, R] int64`, `valid: [B, R] bool`: see `tree_build.Trees`; `draws: [B, R]
    int64`: one target token per row; at padding rows anything.

    Raises:
        ValueError: `implementation` names none of the op's; None is the device's own.
    """
    return _OP.of(implementation, draws.device)(tokens, parent, valid, draws, depth)
