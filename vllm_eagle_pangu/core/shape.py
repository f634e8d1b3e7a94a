# SPDX-License-Identifier: Apache-2.0
"""The size of a draft tree."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TreeShape:
    """Width W (nodes expanded per level), depth D (levels below the root), node budget M."""

    width: int
    depth: int
    nodes: int

    def __post_init__(self) -> None:
        assert self.width >= 1 and self.depth >= 1, self
        assert 1 <= self.nodes <= self.capacity, self

    @property
    def rows(self) -> int:
        """R = M + 1: the root and its nodes."""
        return self.nodes + 1

    @property
    def capacity(self) -> int:
        """C: candidates drafted, W on the first level and W*W on each further one."""
        return self.width + (self.depth - 1) * self.width * self.width

    def nodes_down_to(self, depth: int) -> int:
        """Of a tree's nodes, level by level, the first so many hold every one that shallow."""
        if depth >= self.depth:
            return self.nodes
        return min(self.nodes, TreeShape(self.width, depth, 1).capacity) if depth > 0 else 0
