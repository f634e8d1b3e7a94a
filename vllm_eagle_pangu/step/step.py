# SPDX-License-Identifier: Apache-2.0
"""The step: two halves around the target's forward, which is vLLM's."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vllm_eagle_pangu.core.ops import Ops
from vllm_eagle_pangu.core.policy import TreePolicy
from vllm_eagle_pangu.step.accept import Accepted, Unseen, accept
from vllm_eagle_pangu.step.checks import Checks
from vllm_eagle_pangu.step.commit import Pages, commit
from vllm_eagle_pangu.step.drafter import Drafter
from vllm_eagle_pangu.step.grow import Drafted
from vllm_eagle_pangu.step.head import TargetStates
from vllm_eagle_pangu.step.place import Placed, ScheduledTree, place
from vllm_eagle_pangu.step.stages import Stages
from vllm_eagle_pangu.step.view import BatchView


@dataclass
class Step:
    """`before` the forward, `after` it, and `draft` once the sampled tokens are where they belong.

    `depth`: of the deepest tree. The drafter and the policy may be exchanged between two steps.
    """

    drafter: Drafter[Any]
    policy: TreePolicy
    pages: Pages
    ops: Ops
    depth: int
    checks: Checks
    stages: Stages
    # Whether no tree is in sight, so that the drafter misses the step that runs.
    rests: bool = False

    def begin(self, batch: int, rows: int, has_trees: bool) -> Unseen | None:
        """A step begins. Where it is of a rest and nobody watches it, it passes unseen: its rows
        are the drafter's to `miss`, and only `end` follows."""
        asked = batch > 0 and not has_trees and self.drafter.may_miss
        self.rests = asked and self.policy.rests(batch)
        return Unseen(batch, rows) if self.rests and not self.stages.observers else None

    def before(self, view: BatchView, scheduled: Sequence[ScheduledTree]) -> Placed:
        """Place the scheduled trees, in the order of their requests."""
        self.stages.enter("place")
        placed = place(view, scheduled)
        self.stages.found(placed)
        self.checks.placed(placed)
        return placed

    def after(self, placed: Placed, drawn: torch.Tensor) -> Accepted:
        """Walk the trees along `drawn: [R] int64`, a token per row of logits, and commit."""
        self.stages.enter("accept")
        accepted = accept(placed, drawn, self.depth, self.ops)
        self.stages.found(accepted)
        self.checks.accepted(accepted)
        self.stages.enter("commit")
        self.stages.found(commit(accepted, self.pages, self.ops))
        return accepted

    def draft(self, accepted: Accepted, target: TargetStates) -> Drafted:
        """Grow the trees that the next step verifies."""
        if self.rests:
            self.drafter.miss(accepted.placed.view.slots)
            return Drafted()
        requests = accepted.placed.view.requests
        able = self.drafter.requests(accepted)
        plan = self.policy.plan([requests[request] for request in able]) if able else ()
        shapes = {r: shape for r, shape in zip(able, plan, strict=True) if shape is not None}
        self.stages.enter("extend")
        state = self.drafter.extend(accepted, target, list(shapes))
        if state is None:
            return Drafted()
        self.stages.enter("grow")
        grown = self.drafter.grow(state, list(shapes.values()), self.policy.deepen)
        drafted = grown.of(self.policy.keep([trees.tree for trees in grown.trees], len(requests)))
        self.stages.found(drafted)
        return drafted

    def end(self, step: Accepted | Unseen) -> None:
        """The step is over: its times are known."""
        self.stages.enter("between")
        told = step.report(self.stages.times)
        self.stages.ended(told)
        self.policy.observe(told)
