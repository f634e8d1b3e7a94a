# SPDX-License-Identifier: Apache-2.0
"""Tokens per second of every shape, predicted, and which of them are measured."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from vllm_eagle_pangu.core.shape import TreeShape, chain_shape
from vllm_eagle_pangu.measure.method import PLAIN, Method, chain, of_shape
from vllm_eagle_pangu.tuning import grid
from vllm_eagle_pangu.tuning.probing import StepCost

# Real engines beside plain decoding: of this plugin, and of vLLM's own chains.
TREES, CHAINS = 4, 2
# Of the trees, those that are run at every batch size, where there are several.
SHARED = 2


@dataclass(frozen=True)
class Prediction:
    """Of one shape at one batch size; prefill left out."""

    shape: TreeShape
    tau: float
    draft_ms: float
    verify_ms: float
    tokens_per_s: float


def predict(tau_of: Callable[[TreeShape], float | None], cost: StepCost) -> list[Prediction]:
    """All shapes that the cost knows, the fastest first."""
    found = []
    for shape in filter(cost.knows, grid.shapes(sorted(cost.verify_ms))):
        tau, draft = tau_of(shape), cost.draft(shape)
        assert tau is not None, "a recording without a step is refused"
        rate = 1e3 * cost.batch_size * tau / cost.step(shape)
        found.append(Prediction(shape, tau, draft, cost.verify_ms[shape.nodes], rate))
    return sorted(found, key=lambda prediction: -prediction.tokens_per_s)


def finalists(predicted: Mapping[int, Sequence[Prediction]]) -> dict[int, list[Method]]:
    """By batch size, what is run in engines of its own.

    Plain decoding and the same chains of vLLM's at all; of trees, some that promise most over all
    batch sizes and some that promise most at this one, no two of the same width and depth.
    """
    overall = _overall(predicted)
    shared = [] if len(predicted) == 1 else _one_per_growth(overall)[:SHARED]
    lengths = {chain_shape(length) for length in grid.CHAINS}
    best_chain = next((shape.depth for shape in overall if shape in lengths), grid.CHAINS[0])
    # A pass of vLLM's drafter costs more than one of ours: if not this length, a shorter one.
    chains = [chain(n) for n in reversed(grid.CHAINS) if n <= best_chain][:CHAINS]
    chosen = {}
    for batch, rows in predicted.items():
        trees = dict.fromkeys([*shared, *_one_per_growth([row.shape for row in rows])])
        chosen[batch] = [PLAIN, *chains, *map(of_shape, list(trees)[:TREES])]
    return chosen


def _one_per_growth(shapes: Sequence[TreeShape]) -> list[TreeShape]:
    """Of each width and depth the first; the fastest come first."""
    best: dict[tuple[int, int], TreeShape] = {}
    for shape in shapes:
        best.setdefault((shape.width, shape.depth), shape)
    return list(best.values())


def _overall(predicted: Mapping[int, Sequence[Prediction]]) -> list[TreeShape]:
    """Shapes known at every batch size, by the geometric mean of their share of the best there."""
    shares: dict[TreeShape, list[float]] = defaultdict(list)
    for rows in predicted.values():
        for prediction in rows:
            shares[prediction.shape].append(prediction.tokens_per_s / rows[0].tokens_per_s)
    everywhere = [shape for shape, found in shares.items() if len(found) == len(predicted)]
    return sorted(everywhere, key=lambda shape: -geometric_mean(shares[shape]))
