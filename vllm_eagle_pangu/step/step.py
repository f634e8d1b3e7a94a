# SPDX-License-Identifier: Apache-2.0
"""The step: two halves around the target's forward, which is vLLM's."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vllm_eagle_pangu.core.ops import Ops
from vllm_eagle_pangu.core.policy import TreePolicy
from vllm_eagle_pangu.step.accept import Accepted, accept
from vllm_eagle_pangu.step.commit import Pages, commit
from vllm_eagle_pangu.step.drafter import Drafter, planned
from vllm_eagle_pangu.step.grow import Drafted
from vllm_eagle_pangu.step.head import TargetStates
from vllm_eagle_pangu.step.place import Placed, ScheduledTree, place
from vllm_eagle_pangu.step.stages import Stages
from vllm_eagle_pangu.step.view import BatchView


@dataclass
class Step:
    """The stages in their order. `drafter` and `policy` may be exchanged between two steps; no tree
    is deeper than `depth`."""

    drafter: Drafter[Any]
    policy: TreePolicy
    pages: Pages
    ops: Ops
    depth: int
    stages: Stages

    def before(self, view: BatchView, scheduled: Sequence[ScheduledTree]) -> Placed:
        """Before the forward: place the scheduled trees, in the order of their requests."""
        self.stages.enter("place")
        return self.stages.found(place(view, scheduled))

    def after(self, placed: Placed, drawn: torch.Tensor) -> Accepted:
        """After it: walk the trees along `drawn: [R] int64`, a token per row of logits; commit."""
        self.stages.enter("accept")
        accepted = self.stages.found(accept(placed, drawn, self.depth, self.ops))
        self.stages.enter("commit")
        self.stages.found(commit(accepted, self.pages, self.ops))
        return accepted

    def put_off(self, accepted: Accepted, target: TargetStates) -> None:
        """In place of `draft`, where the next step comes at once."""
        self.stages.enter("extend")
        self.drafter.put_off(accepted, target)

    def draft(self, accepted: Accepted, target: TargetStates) -> Drafted:
        """Once clients have the tokens, or before: grow the trees that the next step verifies."""
        shapes = planned(self.drafter, self.policy, accepted)
        self.stages.enter("extend")
        state = self.drafter.extend(accepted, target, list(shapes))
        if state is None:
            return Drafted()
        self.stages.enter("grow")
        grown = self.drafter.grow(state, list(shapes.values()), self.policy.deepen)
        return self.stages.found(grown.kept(self.policy, accepted.placed.view.requests))
