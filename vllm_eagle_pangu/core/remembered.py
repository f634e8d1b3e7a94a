# SPDX-License-Identifier: Apache-2.0
"""What trees of late held, by the chances of their nodes: by that the next ones are chosen."""

from collections.abc import Sequence
from math import log2

import numpy as np

from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.core.tree import TreeBatch

# Nodes by chance: 32 bins from 1 down to 1/256.
CHANCES = 2.0 ** -(np.arange(32) / 4)
# Bins of what the nodes of a level have of all probability: two for each halving.
SHARES = 16
# What one request's tree weighs in what is remembered.
WEIGHT = 0.01
# Where they are doubted, as if there were so many.
DOUBTED = 16
# Widths that there are, up to the largest shape's.
WIDTHS = (1, 2, 4, 8)


class Remembered:
    """Of a request's trees, mean numbers of nodes by level and chance.

    `nodes: [D, bins]`: of trees as they are drafted by now, and `levels: [D]`, how often each level
    was. `held: [widths, D, bins]`: of trees as wide and deep as may be, what trees of each of
    `widths` would hold of them. `known`, `known_whole`: how many trees either is of.
    """

    LEARNT = ("nodes", "levels", "held", "known", "known_whole", "_below")

    def __init__(self, largest: TreeShape) -> None:
        self.widths = [width for width in WIDTHS if width < largest.width] + [largest.width]
        self.nodes = np.zeros((largest.depth, len(CHANCES)))
        self.levels = np.zeros(largest.depth)
        self.held = np.zeros((len(self.widths), *self.nodes.shape))
        self.known = self.known_whole = 0
        # `[3, SHARES]`, by the sum of the probabilities that the head gave the nodes of some level:
        # trees that went on below, the chances of their new nodes, and how much more of a tree was
        # worth verifying with them. At first as much as the head says.
        share = 2.0 ** -((np.arange(SHARES) + 0.5) / 2)
        self._below = np.stack([np.ones(SHARES), share, share])

    def below(self) -> tuple[list[float], list[int]]:
        """By bin of a level's probabilities, what a tree's next level is worth, and its bin."""
        shares, worths = (self._below[1:] / self._below[0]).tolist()
        return worths, [bin_of(share) for share in shares]

    def doubt(self) -> None:
        """The head, or its texts, became others: trees that come soon count for most."""
        self.known, self.known_whole = min(self.known, DOUBTED), min(self.known_whole, DOUBTED)

    def become(self, width: int, depth: int) -> None:
        """Trees are drafted so wide, one of `widths`, and so deep, from now on."""
        self.levels = (np.arange(len(self.levels)) < depth).astype(float)
        self.nodes = self.held[self.widths.index(width)] * self.levels[:, None]

    def add(
        self,
        tree: TreeBatch,
        chance: np.ndarray,
        bins: Sequence[Sequence[int]],
        costs: np.ndarray,
    ) -> None:
        """Trees as they are drafted by now; `chance: [B, R]`.

        `bins`: by level, as far as known, that of each tree's probabilities. `costs`: in tokens,
        what a forward costs by the nodes of all trees.
        """
        level, valid = tree.depth.numpy(), chance > 0
        valid[:, 0] = False
        found = self._binned(tree, chance, valid)
        # The mean of all, till there are more than are remembered.
        self.known += tree.batch_size
        leaves = _leaves(tree.batch_size, self.known)
        self.nodes = leaves * self.nodes + (1 - leaves) * found
        drafted = np.arange(len(self.levels)) < tree.max_depth
        self.levels = leaves * self.levels + (1 - leaves) * drafted
        if not bins:
            return
        worth = _worth(level, np.where(valid, chance, 0.0), tree.max_depth, costs)
        more = np.diff(worth, axis=1)
        for below in range(1, min(tree.max_depth, len(bins) + 1)):
            of_level = bins[below - 1]
            found = np.where(level == below + 1, chance, 0.0)
            self._below *= (1 - WEIGHT) ** np.bincount(of_level, minlength=SHARES)
            for of_trees, each in enumerate((None, found.sum(axis=1), more[:, below - 1])):
                self._below[of_trees] += np.bincount(of_level, each, SHARES)

    def add_whole(self, tree: TreeBatch, chance: np.ndarray) -> None:
        """Trees as wide and deep as may be; `chance: [B, R]`."""
        self.known_whole += tree.batch_size
        leaves = _leaves(tree.batch_size, self.known_whole)
        for place, width in enumerate(self.widths):
            held = narrower(tree, width)
            held[:, 0] = False
            self.held[place] *= leaves
            self.held[place] += (1 - leaves) * self._binned(tree, chance, held & (chance > 0))

    def _binned(self, tree: TreeBatch, chance: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """`[D, bins]`: how many of the `rows: [B, R] bool` a tree has by level and chance."""
        bins = np.clip(np.rint(-4 * np.log2(chance[rows])).astype(int), 0, len(CHANCES) - 1)
        place = (tree.depth.numpy()[rows] - 1) * len(CHANCES) + bins
        found = np.bincount(place, minlength=self.nodes.size) / tree.batch_size
        return found.reshape(self.nodes.shape)


def bin_of(share: float) -> int:
    """Of what the nodes of a level have of all probability."""
    return min(max(int(-2 * log2(share)), 0), SHARES - 1) if share > 0 else SHARES - 1


def _leaves(trees: int, known: int) -> float:
    """What so many new trees leave of all that are known with them."""
    return float(min(1 - trees / known, (1 - WEIGHT) ** trees))


def _worth(level: np.ndarray, chance: np.ndarray, depth: int, costs: np.ndarray) -> np.ndarray:
    """`[B, D]`: in tokens, what trees are worth that are cut below each level: what the likeliest
    of their nodes, as many as pay, bring beyond their costs.

    `level: [B, R]`; `chance: [B, R]`, 0 where there is no node. `costs`: of the nodes of all trees,
    of which each is reckoned to have as many as the others.
    """
    likeliest = np.argsort(-chance, axis=1)
    level, chance = (np.take_along_axis(each, likeliest, axis=1) for each in (level, chance))
    # `[B, D, R]`
    held = (level[:, None] <= np.arange(1, depth + 1)[:, None]) & (chance > 0)[:, None]
    brings = np.where(held, chance[:, None], 0.0).cumsum(axis=2)
    trees = len(level)
    cost = (costs - costs[0]) / trees
    worth: np.ndarray = brings - cost.take(trees * held.cumsum(axis=2), mode="clip")
    return np.maximum(worth.max(axis=2), 0.0)


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
