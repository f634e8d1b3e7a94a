# SPDX-License-Identifier: Apache-2.0
"""Which method is the fastest, at each batch size and over all of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import geometric_mean

from vllm_eagle_pangu.measure.method import PLAIN, Method
from vllm_eagle_pangu.tuning.race import Times

# Plain decoding is beaten by more than this, or it is the choice: it is simpler.
MARGIN = 1.02

Raced = Mapping[int, Mapping[Method, Times]]


@dataclass(frozen=True)
class Choice:
    """`overall`: of the methods run at every batch size, the fastest; `best`: at each of them.

    Over all batch sizes counts the geometric mean of the speeds relative to plain decoding.
    """

    overall: Method
    best: dict[int, Method]

    @classmethod
    def of(cls, raced: Raced) -> "Choice":
        """Plain decoding was run at every batch size."""
        best = {batch: _fastest(times) for batch, times in raced.items()}
        everywhere = set.intersection(*(set(times) for times in raced.values()))
        fastest = max(everywhere, key=lambda method: mean_ratio(raced, method))
        return cls(fastest if mean_ratio(raced, fastest) > MARGIN else PLAIN, best)


def _fastest(times: Mapping[Method, Times]) -> Method:
    fastest = max(times, key=lambda method: times[method].tokens_per_s)
    return fastest if ratio(times, fastest) > MARGIN else PLAIN


def ratio(times: Mapping[Method, Times], method: Method) -> float:
    """Speed relative to plain decoding in the same race."""
    return times[method].tokens_per_s / times[PLAIN].tokens_per_s


def mean_ratio(raced: Raced, method: Method) -> float:
    """Geometric mean of `ratio` over the batch sizes."""
    return geometric_mean(ratio(times, method) for times in raced.values())


def verdict(raced: Raced, choice: Choice) -> list[str]:
    """What to do, in sentences."""
    chosen, sizes = choice.overall, ", ".join(map(str, sorted(raced)))
    if chosen == PLAIN:
        says = [f"No speculation is fastest at batch {sizes}: leave speculative_config out."]
    else:
        kind = "A chain" if chosen.is_chain else "A tree"
        factor = mean_ratio(raced, chosen)
        says = [f"{kind} is fastest at batch {sizes}: {chosen.title}, {factor:.2f} x plain."]
    for batch, method in sorted(choice.best.items()):
        if method != chosen:
            gain = raced[batch][method].tokens_per_s / raced[batch][chosen].tokens_per_s
            says.append(f"At batch {batch} alone, {method.title} is {gain:.2f} x as fast as that.")
    return says
