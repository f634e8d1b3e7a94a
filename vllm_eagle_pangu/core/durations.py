# SPDX-License-Identifier: Apache-2.0
"""How long something takes by what there is to do, from the last times that it was done."""

from collections.abc import Sequence

import numpy as np

# How much each new time leaves of those before: some 64 count.
MEMORY = 1 - 1 / 64
# A time is believed up to so many times what was expected, or so little of it: a hiccup of the
# machine moves little, and one that became slower is believed all the same.
HICCUP = 2.0
# Before so many were seen, nothing is expected.
ENOUGH = 8
# What all that was seen weighs against a feature that it hardly tells apart from the first one.
DOUBT = 0.05


class Durations:
    """Seconds as a sum over features, each times a number of 0 or more that the times seen tell.

    Least squares of relative errors, the first feature being 1 in all of them. What was always seen
    together is laid to the first.
    """

    def __init__(self, features: int) -> None:
        self._expected = np.zeros((features, features + 1))
        self._seen = np.zeros((features, features + 1))
        self._known = 0
        # `[features]`: seconds of each; None where they changed since.
        self._each: np.ndarray | None = None

    def expect(self, features: Sequence[float], seconds: float) -> None:
        """It is believed to take `seconds`: as if seen once, and never forgotten."""
        self._expected += _normal(features, seconds, seconds)
        self._each = None

    def add(self, features: Sequence[float], seconds: float) -> None:
        """It took `seconds`."""
        usual = seconds
        if self._known >= ENOUGH:
            usual = float(self.each @ features)
            seconds = min(max(seconds, usual / HICCUP), usual * HICCUP)
        self._known += 1
        self._seen *= MEMORY
        self._seen += _normal(features, seconds, usual)
        if self._known <= ENOUGH:
            self._each = None

    @property
    def each(self) -> np.ndarray:
        """`[features]`: seconds of each feature, as last solved for."""
        return self.solve() if self._each is None else self._each

    def at(self, features: np.ndarray) -> np.ndarray:
        """`[n] float64` seconds of `features: [n, features]`; zeros while nothing was seen."""
        return features @ self.each

    def solve(self) -> np.ndarray:
        """`each`, of all that was seen."""
        normal = self._expected + self._seen
        self._each = np.zeros(len(normal))
        asked = np.flatnonzero(normal.diagonal())
        while len(asked):
            doubt = DOUBT * normal[0, 0] * np.diag(asked > 0)
            found = np.linalg.solve(normal[np.ix_(asked, asked)] + doubt, normal[asked, -1])
            if found.min() >= 0:
                self._each[asked] = found
                break
            asked = np.delete(asked, found.argmin())
        return self._each


def _normal(features: Sequence[float], seconds: float, usual: float) -> np.ndarray:
    """`[features, features + 1]`: the part of one time in the normal equations."""
    row = np.array((*features, seconds)) / max(usual, 1e-9)
    return np.outer(row[:-1], row)
