# SPDX-License-Identifier: Apache-2.0
"""How long something takes by what there is to do, from the last times that it was done."""

from collections.abc import Hashable, Sequence
from operator import mul
from typing import ClassVar

import numpy as np

# How much each new time leaves of those before: some 64 count, or 256 where features that hardly
# differ from one time to the next are to be told apart.
MEMORY, LONG_MEMORY = 1 - 1 / 64, 1 - 1 / 256
# What a time weighs in the pace: that of the last 32.
PACE = 1 / 32
# What is of a kind is believed to take up to so many times as long as was reckoned, or as short. As
# if so many times of it had been seen before the first one, and never more than so many: the first
# ones weigh more in that than in the pace, late ones far less.
MISFIT, MISFITS = 1.3, (9, 256)
# A time is believed up to so many times what was expected, or so little of it: a hiccup of the
# machine moves little, and one that became slower is believed all the same.
HICCUP = 2.0
# Before so many were seen, nothing is expected.
ENOUGH = 8
# Behind so many, what was expected counts half, and never less than behind all that count.
FADES = 16
# What all that was seen weighs against a feature that it hardly tells apart from the first one.
DOUBT = 0.05


class Pace:
    """How many times as long all takes by `now` as it does at length.

    What is measured at different times is then compared at one pace: on a machine that others use,
    too, all may take twice as long for a second. What is of a kind may take longer than was
    reckoned at any pace: that is its `misfit`, which the first times of it tell, and hardly the
    later ones, as by then what it is reckoned by has learnt it.
    """

    LEARNT = ("now", "_misfits")
    ITEMS: ClassVar = {"_misfits": ((True, 0), (1.0, 0))}

    def __init__(self) -> None:
        self.now = 1.0
        # By kind, with how many times count that were seen of it.
        self._misfits: dict[Hashable, tuple[float, int]] = {}

    def misfit(self, kind: Hashable) -> float:
        """How many times as long as was reckoned what is of this kind takes."""
        return self._misfits.get(kind, (1.0, 0))[0]

    def saw(self, seconds: float, usual: float, kind: Hashable, memory: float) -> None:
        """Something of a kind took `seconds`, and was reckoned to take `usual` at this pace, by
        what leaves so much of what it knew with each time."""
        misfit, known = self._misfits.get(kind, (1.0, MISFITS[0]))
        times = min(max(seconds / (usual * misfit), 1 / HICCUP), HICCUP)
        self.now *= 1 + PACE * (times - 1)
        misfit = 1 + memory * (misfit * (1 + (times - 1) / known) - 1)
        self._misfits[kind] = min(max(misfit, 1 / MISFIT), MISFIT), min(known + 1, MISFITS[1])


class Durations:
    """Seconds as a sum over features, each times a number of 0 or more that the times seen tell.

    Least squares of relative errors, the first feature being 1 in all of them. What was always seen
    together is laid to the first. `known`: how many times were seen, each at its `pace`.
    """

    LEARNT = ("_seen", "known")

    def __init__(self, features: int, pace: Pace | None = None, memory: float = MEMORY) -> None:
        self._pace, self.memory = pace or Pace(), memory
        # Behind the features, the first one of what was only expected.
        self._expected = np.zeros((features + 1, features + 2))
        self._seen = np.zeros((features + 1, features + 2))
        self.known = 0
        # Times that do not count yet: their features, and seconds at a pace of 1, as all below.
        self._new: list[tuple[Sequence[float], float]] = []
        # `[features]`: seconds of each; None where something else is expected since. And as plain
        # numbers: numpy takes longer than all that a step asks for.
        self._each: np.ndarray | None = None
        self._numbers = [0.0] * features

    def expect(self, features: Sequence[float], seconds: float) -> None:
        """It is believed to take `seconds`: as if seen once, the more it is the less.

        That tells the other features. As it was measured otherwise than times that are seen, the
        first one is theirs, once there are any.
        """
        row, took = np.array([(0, *features[1:], 1)], float), np.array([seconds])
        self._expected += _normal(row, took, took, np.ones(1))
        self._each = None

    def add(self, features: Sequence[float], seconds: float) -> None:
        """It took `seconds`; counts from the next `solve` on, and of the first times at once."""
        self._new.append((features, seconds / self._pace.now))
        self.known += 1
        if self.known <= ENOUGH:
            self._each = None

    @property
    def each(self) -> np.ndarray:
        """`[features]`: seconds of each feature, as last solved for, at the pace of now."""
        if self._each is None:
            self.solve()
        assert self._each is not None
        return self._each * self._pace.now

    def of(self, *features: float) -> float:
        """Seconds of what has these features, at the pace of now; 0 while nothing was seen."""
        if self._each is None:
            self.solve()
        return sum(map(mul, self._numbers, features)) * self._pace.now

    def doubt(self, leaves: float) -> None:
        """What was seen up to the last `solve` counts only `leaves` as much beside what comes."""
        self._seen *= leaves

    def believe_less(self, times: int) -> None:
        """All that was seen counts as if it were so many times, or fewer."""
        count = min(self.known, 1 / (1 - self.memory))
        if count > times:
            self._seen *= times / count
            self.known = times
        self._each = None

    def solve(self) -> None:
        """Let all that was seen count from now on."""
        if self._each is not None and not self._new:
            return
        self._count()
        count = min(self.known, 1 / (1 - self.memory))
        normal = self._expected * (FADES / (FADES + count)) + self._seen
        doubt = np.full(len(normal), DOUBT * (normal[0, 0] + normal[-1, -2]))
        doubt[[0, -1]] = 0.0
        found = np.zeros(len(normal))
        asked = np.flatnonzero(normal.diagonal())
        while len(asked):
            square = normal[np.ix_(asked, asked)] + np.diag(doubt[asked])
            solved = np.linalg.solve(square, normal[asked, -1])
            if solved.min() >= 0:
                found[asked] = solved
                break
            asked = np.delete(asked, solved.argmin())
        self._each = found[:-1]
        if not self.known:
            self._each[0] = found[-1]
        self._numbers = self._each.tolist()

    def _count(self) -> None:
        """Let the new times count, the last one the most."""
        count = len(self._new)
        if not count:
            return
        features, seen = (np.array(each, float) for each in zip(*self._new, strict=True))
        self._new = []
        usual = seen
        if self._each is not None:
            usual = features @ self._each
            seen = seen.clip(usual / HICCUP, usual * HICCUP)
        self._seen *= self.memory**count
        times = np.column_stack((features, np.zeros(count)))
        self._seen += _normal(times, seen, usual, self.memory ** np.arange(count)[::-1])


def _normal(
    features: np.ndarray, seconds: np.ndarray, usual: np.ndarray, weight: np.ndarray
) -> np.ndarray:
    """`[features, features + 1]`: the part of n times in the normal equations."""
    rows = np.column_stack((features, seconds)) / usual.clip(1e-9)[:, None]
    return (rows[:, :-1] * weight[:, None]).T @ rows
