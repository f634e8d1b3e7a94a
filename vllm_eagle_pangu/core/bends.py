# SPDX-License-Identifier: Apache-2.0
"""How far forwards of some numbers of rows are from a line."""

from typing import ClassVar

import numpy as np

from vllm_eagle_pangu.core.durations import HICCUP

# Of a number of rows so many times count at most, and something is known of it from so many on:
# what a line says weighs as much as these.
TIMES, FEWEST = 64, 8


class Bends:
    """What forwards of a number of rows take, for batches of about one size: on a CPU a few rows
    take as long as one, and one more than a matrix product's tile holds a tenth longer at once.

    A size is the power of 2 that a batch is about.
    """

    LEARNT = ("_seen",)
    ITEMS: ClassVar = {"_seen": ((0, 0), (0.0, 0))}

    def __init__(self) -> None:
        # By size and rows: mean seconds, and how many times count.
        self._seen: dict[tuple[int, int], tuple[float, int]] = {}

    def saw(self, size: int, rows: int, seconds: float) -> None:
        """A forward of so many rows took `seconds`."""
        mean, known = self._seen.get((size, rows), (seconds, 0))
        known = min(known + 1, TIMES)
        mean += (min(max(seconds, mean / HICCUP), mean * HICCUP) - mean) / known
        self._seen[size, rows] = mean, known

    def curve(self, size: int, first: float, row: float) -> tuple[np.ndarray, np.ndarray]:
        """`[n], [n]`: numbers of rows, and how many times as long as on a line these take, between
        which it is in between; beyond them it is as at the last one.

        The line: `first` seconds, and `row` for each row.
        """
        of_size = sorted((rows, seen) for (each, rows), seen in self._seen.items() if each == size)
        found = [(rows, *seen) for rows, seen in of_size if seen[1] >= FEWEST and first > 0]
        if not found:
            return np.zeros(1), np.ones(1)
        numbers, mean, known = np.array(found).T
        times = mean / (first + row * numbers)
        return numbers, (known * times + FEWEST) / (known + FEWEST)

    def doubt(self, times: int) -> None:
        """All that was seen of a number of rows counts as if it were so many times, or fewer."""
        self._seen = {
            which: (mean, min(known, times)) for which, (mean, known) in self._seen.items()
        }
