# SPDX-License-Identifier: Apache-2.0
"""Trees and target draws to accepted paths."""

import torch

from vllm_eagle_pangu.core.paths import AcceptedPaths
from vllm_eagle_pangu.core.tree import TreeBatch
from vllm_eagle_pangu.kernels.implementations import Implementations

__all__ = ["IMPLEMENTATIONS", "prepare", "tree_accept"]

_OP = Implementations(
    __name__, "tree_accept", reference="reference", cpp="cpu_impl", triton="triton_impl"
)
IMPLEMENTATIONS = _OP.names
prepare = _OP.prepare


def tree_accept(
    tree: TreeBatch, draws: torch.Tensor, depth: int, implementation: str | None = None
) -> AcceptedPaths:
    """Walk each tree from its root along the target's draws, at most `depth` nodes.

    Where the draw at a row is the token of one of its valid children (the lowest row, if several
    carry it), that child is accepted; otherwise the draw is the bonus token and the walk ends.

    `draws: [B, R] int64`: one target token per row; at padding rows anything.

    Raises:
        ValueError: `implementation` is not one of `IMPLEMENTATIONS`; None is the device's own.
    """
    return _OP.of(implementation, draws.device)(tree, draws, depth)
