# SPDX-License-Identifier: Apache-2.0
"""What growing a tree keeps: the candidates of all levels, and the frontier of the last one."""

from dataclasses import dataclass

import torch


@dataclass
class Frontier:
    """The W nodes per request that the next drafter pass expands, all at depth `level`.

    `tokens: [B, W] int64`.
    `score: [B, W] float32`: cumulative log-probability.
    `parent: [B, W] int64`: index into the previous frontier, from which a node takes its drafter
    state; 0 on the first level, where the parent is the root.
    `visible: [B, W, level*W] bool`: the scratch rows that a node attends. The pass at level l
    writes scratch rows (l-1)*W .. l*W - 1; a node sees its own row and its ancestors'.
    `candidate: [B, W] int64`: 1 + the node's index among the candidates.
    `level`: 1 for the root's children.
    """

    tokens: torch.Tensor
    score: torch.Tensor
    parent: torch.Tensor
    visible: torch.Tensor
    candidate: torch.Tensor
    level: int

    @classmethod
    def empty(cls, batch: int, width: int, level: int, device: torch.device) -> "Frontier":
        """Uninitialised, all contiguous."""
        size = (batch, width)
        return cls(
            tokens=torch.empty(size, dtype=torch.int64, device=device),
            score=torch.empty(size, dtype=torch.float32, device=device),
            parent=torch.empty(size, dtype=torch.int64, device=device),
            visible=torch.empty((*size, level * width), dtype=torch.bool, device=device),
            candidate=torch.empty(size, dtype=torch.int64, device=device),
            level=level,
        )


@dataclass
class Candidates:
    """Room for the C candidates of B trees of width W and depth D, written level by level.

    `tokens: [B, C] int64`; `scores: [B, C] float32` cumulative; `parents: [B, C] int64`: 0 for the
    root's children, else 1 + candidate index. All contiguous.
    """

    tokens: torch.Tensor
    scores: torch.Tensor
    parents: torch.Tensor

    @classmethod
    def empty(cls, batch: int, width: int, depth: int, device: torch.device) -> "Candidates":
        """Uninitialised."""
        size = (batch, level_slice(width, depth).stop)
        return cls(
            tokens=torch.empty(size, dtype=torch.int64, device=device),
            scores=torch.empty(size, dtype=torch.float32, device=device),
            parents=torch.empty(size, dtype=torch.int64, device=device),
        )

    def of_levels(self, depth: int, width: int) -> "Candidates":
        """Those of the first `depth` levels; itself where that is all."""
        stop = level_slice(width, depth).stop
        if stop == self.tokens.shape[1]:
            return self
        parts = (self.tokens, self.scores, self.parents)
        return Candidates(*(part[:, :stop].contiguous() for part in parts))


def level_slice(width: int, level: int) -> slice:
    """The candidates of `level`: W of the first, W*W of each further one."""
    if level == 1:
        return slice(0, width)
    first = width + (level - 2) * width * width
    return slice(first, first + width * width)
