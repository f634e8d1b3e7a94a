# SPDX-License-Identifier: Apache-2.0
"""Which method is the fastest, at each batch size and over all of them; how near a sweep's best."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from vllm_eagle_pangu.measure.method import PLAIN, Method, chain, tree
from vllm_eagle_pangu.tuning import grid
from vllm_eagle_pangu.tuning.engines import Engines
from vllm_eagle_pangu.tuning.race import Say, Times, race
from vllm_eagle_pangu.tuning.settings import Prompt

# Plain decoding is beaten by more than this, or it is the choice: it is simpler.
MARGIN = 1.02
# How many of a sweep's fastest are run once more, beside the choice.
AGAIN = 3

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


@dataclass(frozen=True)
class Sweep:
    """What `--sweep` says of a choice, from a fixed list of candidates in real engines.

    `relative`: speed of each of them as a share of the choice's beside it.

    The largest of many measured shares is large by luck, too: the leaders are run again, on more
    prompts where there are more, and `again` holds what counts. `reached` is the choice's speed as
    a share of the best of them.
    """

    relative: dict[Method, float]
    again: dict[Method, float]

    @property
    def reached(self) -> float:
        return 1 / max(1.0, *self.again.values())


def sweep(
    engines: Engines,
    choice: Method,
    methods: Sequence[Method],
    prompts: Sequence[Prompt],
    batch_size: int,
    say: Say,
) -> Sweep:
    """Run `methods` in groups, the choice in each of them."""
    others = [method for method in methods if method != choice]
    size = max(1, engines.beside_each_other() - 1)
    relative: dict[Method, float] = {}
    for start in range(0, len(others), size):
        group = others[start : start + size]
        shares = _shares(race(engines, [choice, *group], prompts, batch_size, say), choice)
        for method, share in shares.items():
            say(f"sweep, batch {batch_size}: {method.title}: {share:.3f} of the choice")
        relative |= shares
    leaders = sorted(relative, key=lambda method: -relative[method])[:AGAIN]
    again = race(engines, [choice, *leaders], prompts, batch_size, say, most=len(prompts))
    return Sweep(relative, _shares(again, choice))


def candidates(batch_size: int, device: str) -> list[Method]:
    """Plain decoding, vLLM's chains, and trees of all kinds that make sense at this batch size."""
    most = max(grid.budgets(batch_size, device))
    trees = [tree(shape) for shape in grid.SWEEP if shape.nodes <= most]
    return [PLAIN, *map(chain, grid.SWEEP_CHAINS), *trees]


def _shares(times: Mapping[Method, Times], choice: Method) -> dict[Method, float]:
    own = times[choice].tokens_per_s
    return {m: t.tokens_per_s / own for m, t in times.items() if m != choice}
