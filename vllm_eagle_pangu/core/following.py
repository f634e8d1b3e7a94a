# SPDX-License-Identifier: Apache-2.0
"""Whether the drafter takes in what steps commit, for whom, and at once or later."""

from collections.abc import Sequence

from vllm_eagle_pangu.core.looks import FOLLOWED
from vllm_eagle_pangu.core.request import RequestView

# Where many requests come together, the first ones' trees wait for the others' prompts, for so many
# steps one behind the other: many are half of those that then are there.
PUT_OFF = 4


class Following:
    """`steps`: since the drafter last missed what one committed; 0 while it does."""

    def __init__(self) -> None:
        # In how many of them somebody was to have trees, and up to which plan it is to know what is
        # committed.
        self.steps, self._drafting, self._wanted = FOLLOWED, 0, FOLLOWED
        # Requests of which it may have missed something: of those that were there when it began to
        # follow, all but new ones; a prefix from the cache may be a missed one.
        self._missed = frozenset[str]()
        # Steps, one behind the other, behind which many waited.
        self._crowded = 0

    def misses(self) -> None:
        """What this step commits."""
        self.steps = self._drafting = self._crowded = 0

    def follows(self, requests: Sequence[RequestView]) -> None:
        """It takes in what this step commits, at once or later."""
        self.steps += 1
        if self.steps == 1:
            self._missed = frozenset(each.id for each in requests if each.committed)

    def catches_up(self, requests: Sequence[RequestView]) -> bool:
        """Whether it is still to follow somebody, whose tokens it missed, for a while."""
        missed = self._missed
        return self.steps < FOLLOWED and any(each.id in missed for each in requests)

    def want(self, plan: int) -> None:
        """Trees are wanted in this one: not for long behind it where a batch only passes by, but up
        to the next step behind one of it."""
        self._wanted = plan + self._drafting
        self._drafting = min(self._drafting + 1, FOLLOWED)

    def want_no_more(self, plan: int) -> None:
        """From this one on nobody wants it to follow."""
        self._wanted, self._drafting = plan - 1, 0

    def is_wanted(self, plan: int) -> bool:
        """Whether whoever was drafted for of late may be again, in a batch of another size."""
        return plan <= self._wanted

    def gives_way(self, batch: int, new: int, waiting: int) -> bool:
        """Whether a crowd comes, and has not been waited for too long."""
        many = waiting > 0 and 2 * (new + waiting) >= batch + waiting
        self._crowded = self._crowded + 1 if many else 0
        return 0 < self._crowded <= PUT_OFF
