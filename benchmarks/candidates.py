# SPDX-License-Identifier: Apache-2.0
"""Every candidate that a head would have drafted, at every token of what is decoded plainly."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.core.tree import TreeBatch
from vllm_eagle_pangu.step.accept import Accepted
from vllm_eagle_pangu.step.drafter import Drafter
from vllm_eagle_pangu.step.grow import Deepen, Drafted
from vllm_eagle_pangu.step.head import TargetStates


@dataclass(frozen=True)
class Growth:
    """All candidates of one growth, in candidate order, the root first.

    `tokens`, `parent`: [R] int64, `score: [R] float32`, as in `TreeBatch`.
    """

    tokens: np.ndarray
    parent: np.ndarray
    score: np.ndarray

    @classmethod
    def of(cls, tree: TreeBatch) -> "list[Growth]":
        """Those of a batch, on the host; candidates that nothing reaches are left out."""
        arrays = [each.cpu().numpy() for each in (tree.tokens, tree.parent, tree.score)]
        return [
            cls(*(array[row, : count + 1].copy() for array in arrays))
            for row, count in enumerate(tree.node_count.tolist())
        ]


class GrowOnly(Drafter[Any]):
    """A `Drafter`: grows a tree of all candidates for every width, and hands out none, so that the
    next step decodes one token. `growths`: by width and request, of its tokens in turn."""

    def __init__(self, drafter: Drafter, widths: Sequence[int], depth: int) -> None:
        self.drafter = drafter
        self.shapes = [TreeShape(w, depth, w + (depth - 1) * w * w) for w in widths]
        self.growths: dict[int, dict[str, list[Growth]]] = {width: {} for width in widths}
        self._ids: list[str] = []

    def requests(self, accepted: Accepted) -> Sequence[int]:
        """See `Drafter`."""
        return self.drafter.requests(accepted)

    def extend(self, accepted: Accepted, target: TargetStates, requests: Sequence[int]) -> Any:
        """See `Drafter`."""
        self._ids = [accepted.placed.view.requests[request].id for request in requests]
        return self.drafter.extend(accepted, target, requests)

    def grow(self, state: Any, plan: Sequence[TreeShape], deepen: Deepen) -> Drafted:
        """See `Drafter`."""
        for shape in self.shapes:
            (trees,) = self.drafter.grow(state, [shape] * len(plan), deepen).trees
            for request, growth in zip(self._ids, Growth.of(trees.tree), strict=True):
                self.growths[shape.width].setdefault(request, []).append(growth)
        return Drafted()
