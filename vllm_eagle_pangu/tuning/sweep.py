# SPDX-License-Identifier: Apache-2.0
"""`--sweep`: every candidate of a fixed list in a real engine, to see how near the choice came."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vllm_eagle_pangu.measure.method import PLAIN, Method, chain, tree
from vllm_eagle_pangu.tuning import grid
from vllm_eagle_pangu.tuning.engines import Engines
from vllm_eagle_pangu.tuning.prompts import Prompt
from vllm_eagle_pangu.tuning.race import Say, Times, race

# How many of the sweep's fastest are run once more, beside the choice.
AGAIN = 3


@dataclass(frozen=True)
class Sweep:
    """`relative`: speed of each candidate as a share of the choice's beside it.

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
