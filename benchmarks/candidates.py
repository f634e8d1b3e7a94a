# SPDX-License-Identifier: Apache-2.0
"""Every candidate that a head would have drafted, at every token of what is decoded plainly."""

from collections.abc import Sequence
from typing import Any

import torch

from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.core.tree import TreeBatch
from vllm_eagle_pangu.step.accept import Accepted
from vllm_eagle_pangu.step.drafter import Drafter
from vllm_eagle_pangu.step.grow import Deepen, Drafted
from vllm_eagle_pangu.step.head import TargetStates


class GrowOnly(Drafter[Any]):
    """A `Drafter`: grows trees of one shape, and hands out none, so that the next step decodes one
    token. `grown`: by request, a batch of one tree for each of its tokens in turn."""

    def __init__(self, drafter: Drafter, shape: TreeShape) -> None:
        self.drafter, self.shape = drafter, shape
        self.grown: dict[str, list[TreeBatch]] = {}
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
        (trees,) = self.drafter.grow(state, [self.shape] * len(plan), deepen).trees
        for row, request in enumerate(self._ids):
            self.grown.setdefault(request, []).append(trees.tree.select(torch.tensor([row])))
        return Drafted()
