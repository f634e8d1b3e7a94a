# SPDX-License-Identifier: Apache-2.0
"""How long something takes by its size, from the last times that it was done."""

from bisect import bisect_left
from collections import deque
from statistics import median

import numpy as np

# Of each size, the median of so many times counts: a hiccup of the machine moves nothing, and a
# machine that became slower is believed after half as many steps.
REMEMBERED = 9
JUMP = 1.3
# Sizes between two of these share their times, and so do all beyond the last.
SIZES = sorted({round(2 ** (power / 2)) for power in range(2 * 14 + 1)})


class Durations:
    """Seconds by size: medians at the sizes seen, straight lines between them.

    Beyond the sizes seen it goes on with the steepest slope among them, and below the least it
    stays. Where a median jumps, the machine changed, and the times of all other sizes jump along.
    """

    def __init__(self) -> None:
        self._times: dict[int, deque[float]] = {}
        self._medians: dict[int, float] = {}
        # Sizes, their seconds, and what a further one adds; None where a median changed since.
        self._lines: tuple[np.ndarray, np.ndarray, float] | None = None

    def add(self, size: int, seconds: float) -> None:
        """It took `seconds` for `size`."""
        bucket = SIZES[min(bisect_left(SIZES, size), len(SIZES) - 1)]
        times = self._times.setdefault(bucket, deque(maxlen=REMEMBERED))
        times.append(seconds)
        before, now = self._medians.get(bucket), median(times)
        self._medians[bucket] = now
        self._lines = None
        if before and len(times) == REMEMBERED and not 1 / JUMP < now / before < JUMP:
            for other in self._medians.keys() - {bucket}:
                self._times[other] = deque(
                    (t * now / before for t in self._times[other]), REMEMBERED
                )
                self._medians[other] *= now / before

    def __str__(self) -> str:
        """The medians, in milliseconds."""
        sizes = ", ".join(map(str, sorted(self._medians)))
        times = ", ".join(f"{1e3 * self._medians[size]:.1f}" for size in sorted(self._medians))
        return f"{times} ms for {sizes}"

    def at(self, sizes: np.ndarray | int) -> np.ndarray:
        """`[n] float64` seconds of `sizes: [n]`; zeros while nothing was seen."""
        wanted = np.atleast_1d(np.asarray(sizes, dtype=np.float64))
        if not self._medians:
            return np.zeros(wanted.shape)
        if self._lines is None:
            self._lines = self._drawn()
        x, y, slope = self._lines
        found = np.interp(wanted, x, y)
        if slope:
            found += np.clip(wanted - x[-1], 0, None) * slope
        return found

    def _drawn(self) -> tuple[np.ndarray, np.ndarray, float]:
        known = sorted(self._medians.items())
        x, y = (np.array(values, dtype=np.float64) for values in zip(*known, strict=True))
        # What took less for more takes no longer for less: a size with one slow run, which a policy
        # would avoid from then on and never see again, is believed to be as fast as larger ones.
        y = np.minimum.accumulate(y[::-1])[::-1]
        return x, y, float((np.diff(y) / np.diff(x)).max(initial=0.0))
