# SPDX-License-Identifier: Apache-2.0
"""Drafters: what grows the next trees."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from vllm_eagle_pangu.core.ops import Ops
from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.step.accept import Accepted
from vllm_eagle_pangu.step.extend import Extended, extend, requests_to_draft
from vllm_eagle_pangu.step.grow import Deepen, Drafted, grow
from vllm_eagle_pangu.step.head import Head, Limits, TargetStates
from vllm_eagle_pangu.step.unread import Unread

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

    def grow(self, state: State, plan: Sequence[TreeShape], deepen: Deepen) -> Drafted:
        """A tree for each of the requests, in its planned shape, or less deep."""
        ...

    def miss(self, accepted: Accepted, target: TargetStates) -> None:
        """In place of `extend`, where no tree is in sight: what the step emitted may be left out,
        at the price of worse trees for the same texts later."""
        self.extend(accepted, target, ())


@dataclass(frozen=True)
class Eagle3Drafter:
    """An EAGLE-3 head, one pass a level; source: EAGLE-3, section 3, on EAGLE-2's trees."""

    head: Head
    limits: Limits
    ops: Ops
    unread: Unread = field(default_factory=Unread)

    def requests(self, accepted: Accepted) -> Sequence[int]:
        """See `Drafter`."""
        return requests_to_draft(accepted, self.limits)

    def extend(
        self, accepted: Accepted, target: TargetStates, requests: Sequence[int]
    ) -> Extended | None:
        """See `Drafter`."""
        head, limits = self.head, self.limits
        return extend(accepted, target, requests, self.unread, head, limits, self.ops)

    def miss(self, accepted: Accepted, target: TargetStates) -> None:
        """See `Drafter`. The head never attends what it missed."""
        if self.head.rowwise and accepted.trees is None:
            self.unread.miss(accepted.placed.view.slots[self.head.group], self.head)
        else:
            self.extend(accepted, target, ())

    def grow(self, state: Extended, plan: Sequence[TreeShape], deepen: Deepen) -> Drafted:
        """See `Drafter`."""
        return grow(state, plan, deepen, self.head, self.limits, self.ops)
