# SPDX-License-Identifier: Apache-2.0
"""Which method is the fastest, at each batch size and over all of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import geometric_mean

from vllm_eagle_pangu.core.speeds import Account
from vllm_eagle_pangu.measure.method import PLAIN, Method

# Plain decoding is beaten by more than this, or it is the choice: it is simpler.
MARGIN = 1.02


@dataclass(frozen=True)
class Choice:
    """`ratios`: by batch size, each method's speed relative to plain decoding's, which is one of
    them; every method was run at every batch size."""

    ratios: Mapping[int, Mapping[Method, float]]

    @property
    def overall(self) -> Method:
        """The fastest by its mean over the batch sizes."""
        return _fastest({method: self.mean(method) for method in next(iter(self.ratios.values()))})

    @property
    def best(self) -> dict[int, Method]:
        """The fastest at each of them."""
        return {batch: _fastest(each) for batch, each in self.ratios.items()}

    def mean(self, method: Method) -> float:
        """Geometric, of the ratios."""
        return geometric_mean(each[method] for each in self.ratios.values())

    def verdict(self) -> list[str]:
        """What to do, in sentences."""
        chosen, sizes = self.overall, ", ".join(map(str, sorted(self.ratios)))
        if chosen == PLAIN:
            says = [f"No speculation is fastest at batch {sizes}: leave speculative_config out."]
        else:
            says = [f"Fastest at batch {sizes}: {chosen.name}, {self.mean(chosen):.2f} x plain."]
        for batch, method in sorted(self.best.items()):
            if method != chosen:
                gain = self.ratios[batch][method] / self.ratios[batch][chosen]
                more = f"At batch {batch} alone, {method.name} is {gain:.2f} x as fast as that."
                says.append(more)
        return says


def _fastest(ratios: Mapping[Method, float]) -> Method:
    fastest = max(ratios, key=lambda method: ratios[method])
    return fastest if ratios[fastest] > MARGIN else PLAIN


def explained(batch: int, account: Account) -> str:
    """Why adaptive trees do what they do at this batch size, in a sentence."""
    pay = "pay" if account.pays else "do not pay"
    rates = account.trees_per_s, account.plain_per_s
    trees, plain = (f"{rate:.0f}" if rate else "?" for rate in rates)
    parts = account.plain_s, account.forward_s, account.row_s, account.level_s, account.rest_s
    step, forward, row, level, rest = (f"{1e3 * seconds:.3g}" for seconds in parts)
    return (
        f"batch {batch}: trees {pay}: {trees} tokens/s expected against {plain} plain; a plain "
        f"step takes {step} ms, one with trees {forward} + {row} a row + {level} a level + {rest}"
    )
