# SPDX-License-Identifier: Apache-2.0
"""Trees as dense tensors."""

from dataclasses import dataclass

import torch

from vllm_eagle_pangu.kernels.tree_expand.frontier import level_slice


@dataclass(frozen=True)
class Trees:
    """B trees of R = M+1 rows: the root in row 0, nodes in topological order, then padding.

    A parent's row is smaller than its children's, so the first n nodes are a tree for any n.
    Padding rows have token 0, parent 0, depth 0 and score -inf, and no valid row sees them.

    `tokens: [B, R] int64`; column 0 holds the root tokens.
    `parent: [B, R] int64`: row of the parent; 0 for the root.
    `depth: [B, R] int64`: 0 at the root.
    `valid: [B, R] bool`: root and nodes, not padding.
    `visible: [B, R, R] bool`: see `kernels.mask.visible_rows`.
    `score: [B, R] float32`: cumulative draft log-probability, 0 at the root.
    """

    tokens: torch.Tensor
    parent: torch.Tensor
    depth: torch.Tensor
    valid: torch.Tensor
    visible: torch.Tensor
    score: torch.Tensor

    @classmethod
    def empty(cls, batch: int, rows: int, device: torch.device) -> "Trees":
        """Uninitialised, all contiguous."""
        size = (batch, rows)
        return cls(
            tokens=torch.empty(size, dtype=torch.int64, device=device),
            parent=torch.empty(size, dtype=torch.int64, device=device),
            depth=torch.empty(size, dtype=torch.int64, device=device),
            valid=torch.empty(size, dtype=torch.bool, device=device),
            visible=torch.empty((*size, rows), dtype=torch.bool, device=device),
            score=torch.empty(size, dtype=torch.float32, device=device),
        )


def check_sizes(capacity: int, width: int, depth: int, nodes: int) -> None:
    """Assert that so many candidates are those of a tree, and enough for the nodes to keep."""
    assert capacity == level_slice(width, depth).stop, (capacity, width, depth)
    assert 1 <= nodes <= capacity, (nodes, capacity)
