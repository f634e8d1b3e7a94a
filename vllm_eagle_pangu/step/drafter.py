# SPDX-License-Identifier: Apache-2.0
"""Drafters: what grows the next trees."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np

from vllm_eagle_pangu.core.ops import Ops
from vllm_eagle_pangu.core.policy import TreePolicy
from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.step.accept import Accepted
from vllm_eagle_pangu.step.extend import Extended, extend, requests_to_draft
from vllm_eagle_pangu.step.grow import Deepen, Drafted, GrowShape, grow, grow_shape
from vllm_eagle_pangu.step.head import Head, Limits, TargetStates
from vllm_eagle_pangu.step.unread import ENOUGH, MANY, Unread

# What a drafter keeps between its two stages.
State = TypeVar("State")


class Drafter(Protocol[State]):
    """Drafts the trees that the next step verifies."""

    def requests(self, accepted: Accepted) -> Sequence[int]:
        """Requests of the batch that it can draft for, ascending."""
        ...

    def extend(
        self, accepted: Accepted, target: TargetStates, requests: Sequence[int]
    ) -> State | None:
        """Take in what the step emitted, to draft for `requests`, ascending; None without any."""
        ...

    def put_off(self, accepted: Accepted, target: TargetStates) -> None:
        """In place of `extend`, where the next step is to come at once: what was emitted may be
        taken in later; unless overridden, it is now."""
        self.extend(accepted, target, [])

    @property
    def behind(self) -> int:
        """Rows that it is to take in later."""
        return 0

    def grow(self, state: State, plan: Sequence[TreeShape], deepen: Deepen) -> Drafted:
        """A tree for each of the requests, in its planned shape, or less deep."""
        ...

    @property
    def may_miss_in(self) -> int | None:
        """The KV cache group of whose slots it must know if it is to do without what some steps
        commit; None: it cannot. For one on the host."""
        return None

    def miss(self, slots: np.ndarray) -> None:
        """In place of `extend`, where no tree is in sight: what steps write into `slots: [N]`, one
        step behind the other, is left out, at the price of worse trees for the same texts later."""


def planned(drafter: Drafter[Any], policy: TreePolicy, accepted: Accepted) -> dict[int, TreeShape]:
    """By request of the batch, ascending, the shape of the tree that is drafted for it, if any."""
    able = drafter.requests(accepted)
    requests = accepted.placed.view.requests
    plan = policy.plan([requests[request] for request in able]) if able else ()
    return {r: shape for r, shape in zip(able, plan, strict=True) if shape is not None}


@dataclass(frozen=True)
class Eagle3Drafter:
    """An EAGLE-3 head, one pass a level, or one for all of them, as it was trained; source:
    EAGLE-3, section 3, or P-EAGLE, on EAGLE-2's trees."""

    head: Head
    limits: Limits
    ops: Ops
    unread: Unread = field(default_factory=Unread)
    grow_one: GrowShape = grow_shape

    def requests(self, accepted: Accepted) -> Sequence[int]:
        """See `Drafter`."""
        return requests_to_draft(accepted, self.limits)

    def extend(
        self, accepted: Accepted, target: TargetStates, requests: Sequence[int]
    ) -> Extended | None:
        """See `Drafter`."""
        return self._extend(accepted, target, requests, ENOUGH)

    def put_off(self, accepted: Accepted, target: TargetStates) -> None:
        """See `Drafter`; a head that is not rowwise does now."""
        self._extend(accepted, target, [], MANY)

    def _extend(
        self, accepted: Accepted, target: TargetStates, requests: Sequence[int], enough: int
    ) -> Extended | None:
        head, limits = self.head, self.limits
        return extend(accepted, target, requests, self.unread, enough, head, limits, self.ops)

    @property
    def behind(self) -> int:
        """See `Drafter`."""
        return self.unread.count

    @property
    def may_miss_in(self) -> int | None:
        """See `Drafter`. A head of one layer never attends what it missed."""
        return self.head.group if self.head.rowwise else None

    def miss(self, slots: np.ndarray) -> None:
        """See `Drafter`."""
        self.unread.miss(slots, self.head.page_size)

    def grow(self, state: Extended, plan: Sequence[TreeShape], deepen: Deepen) -> Drafted:
        """See `Drafter`."""
        return grow(state, plan, deepen, self.head, self.limits, self.ops, self.grow_one)
