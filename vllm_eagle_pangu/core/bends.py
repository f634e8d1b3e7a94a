# SPDX-License-Identifier: Apache-2.0
"""How far forwards of some numbers of rows are from a line."""

from typing import ClassVar

import numpy as np

from vllm_eagle_pangu.core.durations import HICCUP

# Of a number of rows so many times count at most; of all, how far times are from their means.
TIMES, ALL_TIMES = 64, 256
# What the line weighs beside what is seen of all numbers of rows.
LINE = 8
# Of normal noise, the root of its mean square by its mean.
NORMAL = 1.25


class Bends:
    """What forwards of a number of rows take, for batches of about one size: on a CPU a few rows
    take as long as one, and one more than a matrix product's tile holds a tenth longer at once.

    A size is the power of 2 that a batch is about.
    """

    LEARNT = ("_seen", "_noise", "_times")
    ITEMS: ClassVar = {"_seen": ((0, 0), (0.0, 0))}

    def __init__(self) -> None:
        # By size and rows: mean seconds, and how many times count.
        self._seen: dict[tuple[int, int], tuple[float, int]] = {}
        # How far a time is from its mean, as a share of it, and how many times count of that.
        self._noise, self._times = 0.0, 0

    def saw(self, size: int, rows: int, seconds: float) -> None:
        """A forward of so many rows took `seconds`."""
        mean, known = self._seen.get((size, rows), (seconds, 0))
        apart = min(max(seconds / mean, 1 / HICCUP), HICCUP) - 1
        if known:
            self._times = min(self._times + 1, ALL_TIMES)
            self._noise += (abs(apart) - self._noise) / self._times
        known = min(known + 1, TIMES)
        self._seen[size, rows] = mean * (1 + apart / known), known

    def curve(self, size: int, first: float, row: float) -> tuple[np.ndarray, np.ndarray]:
        """`[n], [n]`: numbers of rows, and how many times as long as on a line these take, between
        which it is in between; beyond them it is as at the last one.

        The line: `first` seconds, and `row` for each row. As far as these numbers of rows are apart
        from each other by more than chance, as if they were drawn from a normal distribution.
        """
        found = sorted((rows, *seen) for (each, rows), seen in self._seen.items() if each == size)
        if not found or first <= 0:
            return np.zeros(1), np.ones(1)
        rows, mean, known = np.array(found).T
        times = mean / (first + row * rows)
        usual = known @ times / known.sum()
        chance = (NORMAL * self._noise) ** 2 / known
        apart = max(float(known @ ((times - usual) ** 2 - chance)) / known.sum(), 1e-9)
        believed = (LINE + usual * known.sum()) / (LINE + known.sum())
        return rows, believed + (times - usual) * apart / (apart + chance)

    def doubt(self, times: int) -> None:
        """All that was seen of a number of rows counts as if it were so many times, or fewer."""
        self._seen = {
            which: (mean, min(known, times)) for which, (mean, known) in self._seen.items()
        }
