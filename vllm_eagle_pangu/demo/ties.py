# SPDX-License-Identifier: Apache-2.0
"""Is a difference between two greedy outputs a rounding tie or an error?

Plain decoding multiplies one row at a time, verification M+1 rows, so sums are taken in another
order and a bfloat16 logit may come out a unit or two in the last place away. When the two best
logits are closer than that, either token is the argmax, and the outputs part for good.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

# bfloat16 keeps 8 significant bits: in [2^e, 2^(e+1)) its values are 2^(e-7) apart.
SIGNIFICANT_BITS = 8
# Each of the two logits may be off by one unit.
TIE_UNITS = 2


@dataclass(frozen=True)
class Difference:
    """Two outputs part at `position`: `plain` and `other` are the tokens there."""

    position: int
    plain: int
    other: int
    gap: float
    unit: float

    @property
    def near_tie(self) -> bool:
        return self.gap <= TIE_UNITS * self.unit


def first_difference(plain: Sequence[int], other: Sequence[int]) -> int | None:
    """Index of the first token that differs; the shorter length if one is a prefix."""
    for index, (left, right) in enumerate(zip(plain, other, strict=False)):
        if left != right:
            return index
    return None if len(plain) == len(other) else min(len(plain), len(other))


def unit_in_last_place(value: float) -> float:
    """Distance between neighbouring bfloat16 values at `value`."""
    if value == 0.0:
        return 0.0
    return 2.0 ** (math.floor(math.log2(abs(value))) - (SIGNIFICANT_BITS - 1))


def classify(position: int, plain: int, other: int, logits: dict[int, float]) -> Difference:
    """Judge a difference by the target's highest logits at that position, `{token: logit}`.

    A token missing from `logits` is no candidate at all: its gap is infinite.
    """
    best = max(logits.values())
    gap = max(best - logits.get(token, -math.inf) for token in (plain, other))
    return Difference(position, plain, other, gap, unit_in_last_place(best))
