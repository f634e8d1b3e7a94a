# SPDX-License-Identifier: Apache-2.0
"""How often the target follows the head: what its probabilities say, corrected by what was seen."""

import numpy as np

from vllm_eagle_pangu.core.paths import AcceptedPaths
from vllm_eagle_pangu.core.tree import TreeBatch

# Of the head's probability for a token, on the scale of its log-odds.
BIN_EDGES = np.arange(-5.0, 5.5, 0.5)
# A bin believes the head like one that saw it be right so many times.
PRIOR = 8.0
# Of what was seen before, how much each observation leaves: some 500 count.
MEMORY = 0.998


class Acceptance:
    """The chance that a node is accepted given that its parent is, by level and the head's word.

    Only children of accepted nodes are observed: what the others would have met is not known, and
    not asked for either, as a path ends with its first rejected node.
    """

    def __init__(self, depth: int) -> None:
        bins = (depth, len(BIN_EDGES) + 1)
        self.seen, self.accepted = np.zeros(bins), np.zeros(bins)

    def of_paths(self, tree: TreeBatch) -> np.ndarray:
        """`[B, R] float64`: the chance of each node's whole path; 1 at the root, 0 at padding.

        No node has a larger one than its parent.
        """
        said, level, bins = self._said(tree)
        edge = (PRIOR * said + self.accepted[level, bins]) / (PRIOR + self.seen[level, bins])
        edge[:, 0] = 1.0
        # A row sees itself and its ancestors.
        path = tree.visible.numpy().astype(np.float64) @ np.log(edge)[:, :, None]
        return np.exp(path[:, :, 0]) * tree.valid.numpy()

    def observe(self, tree: TreeBatch, paths: AcceptedPaths) -> None:
        """Learn from verified trees, on the host."""
        said, level, bins = self._said(tree)
        rows, length = paths.rows.numpy(), paths.length.numpy()
        on_path = np.zeros(said.shape, dtype=bool)
        used = np.arange(rows.shape[1]) <= length[:, None]
        np.put_along_axis(on_path, np.where(used, rows, 0), True, axis=1)
        tried = tree.valid.numpy() & np.take_along_axis(on_path, tree.parent.numpy(), axis=1)
        tried[:, 0] = False
        where = level[tried], bins[tried]
        leaves = MEMORY ** tried.sum()
        self.seen *= leaves
        self.accepted *= leaves
        np.add.at(self.seen, where, 1.0)
        np.add.at(self.accepted, where, on_path[tried])

    def _said(self, tree: TreeBatch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """`[B, R]` each: the head's probability of a node after its parent, its level, its bin."""
        score = np.where(tree.valid.numpy(), tree.score.numpy(), 0.0)
        step = score - np.take_along_axis(score, tree.parent.numpy(), axis=1)
        said = np.exp(step).clip(1e-6, 1 - 1e-6)
        level = np.maximum(tree.depth.numpy(), 1) - 1
        return said, level, np.searchsorted(BIN_EDGES, np.log(said / (1 - said)))
