# SPDX-License-Identifier: Apache-2.0
"""How far a run has come, and the learning-rate factor that follows from it.

A run ends when its token budget or its wall-clock budget is used up, whichever is first. The
learning rate follows the same progress, so a run cut by the clock has decayed just as well.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Budget:
    """Limits of a run; at least one of them is set."""

    max_tokens: int | None = None
    max_minutes: float | None = None

    def __post_init__(self) -> None:
        if self.max_tokens is None and self.max_minutes is None:
            raise ValueError("max_tokens and max_minutes are both unset: set at least one of them")

    def progress(self, tokens: int, seconds: float) -> float:
        """Fraction used up, in [0, 1]; 1 means stop."""
        by_tokens = tokens / self.max_tokens if self.max_tokens else 0.0
        by_clock = seconds / (60.0 * self.max_minutes) if self.max_minutes else 0.0
        return min(1.0, max(by_tokens, by_clock))


def learning_rate_factor(progress: float, warmup: float, hold: float) -> float:
    """Linear warm-up over `warmup` of the run, then full until `hold`, then linear to zero."""
    if progress < warmup:
        return max(progress, 1e-3 * warmup) / warmup
    if progress < hold:
        return 1.0
    return max(0.0, (1.0 - progress) / (1.0 - hold))
