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
    together is laid to the first. `known`: how many times were seen.
    """

    def __init__(self, features: int) -> None:
        # Behind the features, the first one of what was only expected.
        self._expected = np.zeros((features + 1, features + 2))
        self._seen = np.zeros((features + 1, features + 2))
        self.known = 0
        # `[features]`: seconds of each; None where they changed since.
        self._each: np.ndarray | None = None

    def expect(self, features: Sequence[float], seconds: float) -> None:
        """It is believed to take `seconds`: as if seen once, and never forgotten.

        That tells the other features. As it was measured otherwise than times that are seen, the
        first one is theirs, once there are any.
        """
        self._expected += _normal((0, *features[1:], 1), seconds, seconds)
        self._each = None

    def add(self, features: Sequence[float], seconds: float) -> None:
        """It took `seconds`."""
        usual = seconds
        if self.known >= ENOUGH:
            usual = float(self.each @ features)
            seconds = min(max(seconds, usual / HICCUP), usual * HICCUP)
        self.known += 1
        self._seen *= MEMORY
        self._seen += _normal((*features, 0), seconds, usual)
        if self.known <= ENOUGH:
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
        return self._each


def _normal(features: Sequence[float], seconds: float, usual: float) -> np.ndarray:
    """`[features, features + 1]`: the part of one time in the normal equations."""
    row = np.array((*features, seconds)) / max(usual, 1e-9)
    return np.outer(row[:-1], row)
