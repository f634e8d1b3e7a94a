# SPDX-License-Identifier: Apache-2.0
"""Drafters: what grows the next trees."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from vllm_eagle_pangu.core.ops import Ops
from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.step.accept import Accepted
from vllm_eagle_pangu.step.extend import Extended, extend
from vllm_eagle_pangu.step.grow import Drafted, grow
from vllm_eagle_pangu.step.head import Head, Limits, TargetStates


class DraftState(Protocol):
    """What a drafter keeps between its two stages."""

    @property
    def requests(self) -> Sequence[int]:
        """Requests of the batch that it can draft for, ascending."""
        ...


State = TypeVar("State", bound=DraftState)


class Drafter(Protocol[State]):
    """Drafts the trees that the next step verifies."""

    def extend(self, accepted: Accepted, target: TargetStates) -> State | None:
        """Take in what the step emitted; None where no request can be drafted for."""
        ...

    def grow(self, state: State, plan: Sequence[TreeShape | None]) -> Drafted:
        """A tree for each of `state.requests` in its planned shape; none where that is None."""
        ...


@dataclass(frozen=True)
class Eagle3Drafter:
    """An EAGLE-3 head, one pass a level; source: EAGLE-3, section 3, on EAGLE-2's trees."""

    head: Head
    limits: Limits
    ops: Ops

    def extend(self, accepted: Accepted, target: TargetStates) -> Extended | None:
        """See `Drafter`."""
        return extend(accepted, target, self.head, self.limits, self.ops)

    def grow(self, state: Extended, plan: Sequence[TreeShape | None]) -> Drafted:
        """See `Drafter`."""
        return grow(state, plan, self.head, self.limits, self.ops)
