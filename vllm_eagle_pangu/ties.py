# SPDX-License-Identifier: Apache-2.0
"""Does a greedy output part from plain decoding's by rounding, or is a token of it wrong?

Decode multiplies one row at a time, verification M+1 rows, prefill all of them: sums are taken in
other orders, and in half precision a logit comes out differently each time. How much so depends on
the kernels of the machine, so it is measured where the judgement is made (`rounding`): the target's
own logits in half precision, plain decoding's and a prefill's, against float32's for the same
positions. Decode against prefill would not do: there are machines on which they agree to the last
bit, and any third order parts from both. Nothing that is to be judged takes part, so that no error
widens its own bound.

The bound: let r be the most that rounding moved a logit. A token x that was drawn from rounded
logits z' had z'(x) >= z'(b) for every b. In float32's logits z of the same context it then lies
behind b by z(b) - z(x) <= (z(b) - z'(b)) + (z'(x) - z(x)) <= 2r: either logit may move by r. So
each token of an output, given the output's own tokens before it, must lie within 2r of the best.
Where nothing moves, only an exact tie passes.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

# So many of a position's highest logits are looked at: whatever may be drawn is among them.
TOP = 5

# The highest logits of a position by token id.
Logits = Mapping[int, float]


@dataclass(frozen=True)
class Rounding:
    """How far rounding moves the target's logits, in `compared` pairs of evaluations of a position.

    `close`: pairs whose two best tokens lie within the bound, where either of them passes.
    """

    compared: int
    mean: float
    p99: float
    most: float
    close: int

    @property
    def bound(self) -> float:
        """How far behind the best a token may lie: 2r."""
        return 2 * self.most

    def __str__(self) -> str:
        return (
            f"in {self.compared} comparisons the target's own logits move by {self.mean:.4f} on "
            f"average, {self.p99:.4f} at p99, {self.most:.4f} at most; so a token may lie "
            f"{self.bound:.4f} behind the best, as the second best does at {self.close} of them"
        )


@dataclass(frozen=True)
class Difference:
    """A greedy output that parts at `position`: `plain` and `other` are the tokens there.

    `gaps`: how far each token of the output lies behind the best; at `position`, the farther of
    the two tokens.
    """

    position: int
    plain: int
    other: int
    gaps: tuple[float, ...]
    bound: float

    @property
    def wrong(self) -> int | None:
        """The first position whose token is farther behind than rounding explains."""
        # Not `gap > bound`: NaN is wrong.
        return next((i for i, gap in enumerate(self.gaps) if not gap <= self.bound), None)

    @property
    def near_tie(self) -> bool:
        return self.wrong is None


def rounding(pairs: Iterable[tuple[Logits, Logits]]) -> Rounding:
    """From two evaluations of each position, the exact one second; compares what both list.

    What shifts all logits of a position changes no draw and is taken out. So either evaluation may
    be of log-probabilities, which vLLM 0.23 gives for prompts whatever its --logprobs-mode.
    """
    pairs = list(pairs)
    moves: list[float] = []
    for one, other in pairs:
        shifts = [one[token] - other[token] for token in one.keys() & other.keys()]
        middle = statistics.median_low(shifts)
        moves += [abs(shift - middle) for shift in shifts]
    moves.sort()
    most, p99 = moves[-1], moves[math.ceil(0.99 * len(moves)) - 1]
    best = [sorted(other.values())[-2:] for _, other in pairs]
    close = sum(first - second <= 2 * most for second, first in best)
    return Rounding(len(pairs), statistics.fmean(moves), p99, most, close)


def judge(
    plain: Sequence[int], other: Sequence[int], logits: Sequence[Logits], bound: float
) -> Difference:
    """Judge an output that is not plain decoding's, of the same length.

    `logits`: per position the highest ones of float32's prefill of `other`, the one of its own
    token included. A token that plain decoding drew and that is not among them is no candidate.
    """
    best = [max(row.values()) for row in logits]
    gaps = [top - row[token] for top, row, token in zip(best, logits, other, strict=True)]
    at = parting(plain, other)
    gaps[at] = max(gaps[at], best[at] - logits[at].get(plain[at], -math.inf))
    return Difference(at, plain[at], other[at], tuple(gaps), bound)


def parting(one: Sequence[int], other: Sequence[int]) -> int:
    """Where two outputs differ first, which is the end of one if the other goes on."""
    pairs = list(zip(one, other, strict=False))
    return next((i for i, (mine, theirs) in enumerate(pairs) if mine != theirs), len(pairs))
