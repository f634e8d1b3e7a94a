# SPDX-License-Identifier: Apache-2.0
"""What of a tree a narrower one would have held."""

import numpy as np

from vllm_eagle_pangu.core.tree import TreeBatch


def narrower(tree: TreeBatch, width: int) -> np.ndarray:
    """`[B, R] bool`: the rows that trees grown as these were, but `width` wide, would hold.

    Of each node that was expanded the `width` likeliest children, and of each level as many
    expanded, as `grow` does; what the node budget left out of these trees is not told.
    """
    score, parent, depth, valid = (
        each.numpy() for each in (tree.score, tree.parent, tree.depth, tree.valid)
    )
    row = np.arange(tree.rows)
    # `[B, R, R]`: whether a row, the last index, comes before another one of its level.
    earlier = (score[:, None] > score[:, :, None]) | (
        (score[:, None] == score[:, :, None]) & (row < row[:, None])
    )
    earlier &= (depth[:, None] == depth[:, :, None]) & valid[:, None]
    siblings = parent[:, None] == parent[:, :, None]
    held = valid & ((earlier & siblings).sum(axis=2) < width)
    held[:, 0] = True
    # All of a level come before the next one.
    for level in range(1, tree.max_depth):
        held &= (depth <= level) | np.take_along_axis(held, parent, axis=1)
        best = held & ((earlier & held[:, None]).sum(axis=2) < width)
        held &= (depth != level + 1) | np.take_along_axis(best, parent, axis=1)
    return held
