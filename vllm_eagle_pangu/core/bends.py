# SPDX-License-Identifier: Apache-2.0
"""How far forwards of some numbers of rows are from a line."""

from typing import ClassVar

import numpy as np

from vllm_eagle_pangu.core.durations import HICCUP

# Of a number of rows so many times count at most; of all, how far times are from their means.
TIMES, ALL_TIMES = 64, 256
# Of normal noise, the root of its mean square by its mean.
NORMAL = 1.25
# A machine is faster for a second, and slower for the next: numbers of rows are compared with those
# of the last so many forwards, and are apart by as much however often they were seen.
LATE, APART = 8, 0.01


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
        # Of what was seen of their numbers of rows, what the last few forwards took.
        self._late = 1.0

    def saw(self, size: int, rows: int, seconds: float) -> None:
        """A forward of so many rows took `seconds`."""
        mean, known = self._seen.get((size, rows), (seconds / self._late, 0))
        took = min(max(seconds / mean, 1 / HICCUP), HICCUP)
        apart = took / self._late - 1
        if known:
            self._times = min(self._times + 1, ALL_TIMES)
            self._noise += (abs(apart) - self._noise) / self._times
            self._late += (took - self._late) / LATE
        known = min(known + 1, TIMES)
        self._seen[size, rows] = mean * (1 + apart / known), known

    def curve(self, size: int, first: float, row: float) -> tuple[np.ndarray, np.ndarray]:
        """`[n], [n]`: numbers of rows, and how many times as long as on a line these take, between
        which it is in between; beyond them it is as at the last one. 1 in the mean.

        The line: `first` seconds, and `row` for each row. As far as these numbers of rows are apart
        from each other by more than chance, as if they were drawn from a normal distribution.
        """
        found = sorted((rows, *seen) for (each, rows), seen in self._seen.items() if each == size)
        if not found or first <= 0:
            return np.zeros(1), np.ones(1)
        rows, mean, known = np.array(found).T
        times = mean / (first + row * rows)
        times /= known @ times / known.sum()
        chance = (NORMAL * self._noise) ** 2 / known + APART**2
        apart = max(float(known @ ((times - 1) ** 2 - chance)) / known.sum(), 1e-9)
        return rows, 1 + (times - 1) * apart / (apart + chance)

    def doubt(self, times: int) -> None:
        """All that was seen of a number of rows counts as if it were so many times, or fewer."""
        self._seen = {
            which: (mean, min(known, times)) for which, (mean, known) in self._seen.items()
        }
