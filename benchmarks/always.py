# SPDX-License-Identifier: Apache-2.0
"""Adaptive trees in every step, with fewer parts."""

from collections.abc import Sequence

import torch
from simulator import OPS, SHAPE

from vllm_eagle_pangu.core.adaptive import AdaptiveShapes
from vllm_eagle_pangu.core.policy import NONE, Unasked
from vllm_eagle_pangu.core.request import RequestView
from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.core.tree import TreeBatch


class Always(AdaptiveShapes):
    """Adaptive trees, one for every request in every step.

    `shared`: the nodes go to whichever trees they are worth most in, not as many to each. `depth`:
    as deep as pays, not all levels; `width`: as wide as pays.
    """

    def __init__(self, shared: bool, depth: bool, width: bool) -> None:
        super().__init__(SHAPE, OPS)
        self._shared, self._depth = shared, depth
        if not width:
            # In place, as `sizes` has the same list.
            del self.trees.widths[:-1]
            self.trees.held = self.trees.held[-1:]

    def rests(self, batch: int, unasked: Unasked = NONE) -> int:
        return 0

    def plan(self, requests: Sequence[RequestView]) -> Sequence[TreeShape | None]:
        looks = self._looks(len(requests))
        looks.pays = looks.near = True
        super().plan(requests)
        self._drafted = len(requests)
        return [self.sizes.shape] * len(requests)

    def deepen(self, level: int, score: torch.Tensor) -> bool:
        return super().deepen(level, score) or not self._depth

    def keep(
        self, trees: Sequence[TreeBatch], requests: Sequence[Sequence[RequestView]], batch: int
    ) -> Sequence[TreeBatch]:
        kept = super().keep(trees, requests, batch)
        return kept if self._shared else [self._as_many(tree) for tree in trees]

    def _as_many(self, tree: TreeBatch) -> TreeBatch:
        count, nodes = tree.batch_size, tree.rows - 1
        free = torch.zeros(count * nodes + 1, dtype=torch.float64)
        greedy = torch.zeros(count, dtype=torch.int64)
        by_chance, chance = OPS.tree_prune(tree, greedy, self.belief, free)
        falling = chance[:, 1:].sort(dim=1, descending=True).values.sum(dim=0)
        cost = torch.from_numpy(self._prices.nodes[: count * nodes + 1 : count])
        worth = torch.cat((torch.zeros(1), falling.cumsum(0))) - cost
        most = torch.full((count,), int(worth.argmax()))
        return TreeBatch.of(by_chance, tree.max_depth).cut(most)
