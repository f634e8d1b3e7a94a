# SPDX-License-Identifier: Apache-2.0
"""Inputs of tree_build, for tests and benchmarks; results are integers and copies, so exact."""

from dataclasses import dataclass
from typing import Any

import torch

from vllm_eagle_pangu.core.shape import TreeShape, chain_shape


@dataclass(frozen=True)
class BuildCase:
    """`scores` is one of

    "random": log-probabilities of a random drafter;
    "ties": the same, rounded to whole numbers;
    "certain": half of the children have probability 1.0 and tie with their parents;
    "rising": children may outrank their parents, as no drafter should score them;
    "holes": some are NaN or -inf;
    "nothing": all are -inf.
    """

    name: str
    shape: TreeShape
    batch: int = 1
    scores: str = "random"


CASES = (
    BuildCase("one_node", TreeShape(1, 1, 1)),
    BuildCase("chain", chain_shape(5), batch=3),
    BuildCase("chain_cut", TreeShape(1, 6, 2), batch=2),
    BuildCase("one_level", TreeShape(4, 1, 4), batch=2),
    BuildCase("small", TreeShape(2, 3, 7), batch=4),
    BuildCase("cpu_preset", TreeShape(4, 4, 12), batch=1),
    BuildCase("everything_kept", TreeShape(3, 3, 21), batch=2),
    BuildCase("wide", TreeShape(8, 6, 63), batch=5),
    BuildCase("ties", TreeShape(4, 4, 16), batch=6, scores="ties"),
    BuildCase("certain", TreeShape(4, 5, 16), batch=6, scores="certain"),
    BuildCase("rising", TreeShape(3, 4, 9), batch=6, scores="rising"),
    BuildCase("holes", TreeShape(3, 4, 20), batch=6, scores="holes"),
    BuildCase("nothing", TreeShape(2, 2, 3), batch=2, scores="nothing"),
)


def make_inputs(case: BuildCase, seed: int = 0, device: str = "cpu") -> dict[str, Any]:
    """Keyword arguments of `tree_build`."""
    generator = torch.Generator().manual_seed(seed)
    batch, width = case.batch, case.shape.width
    score = _log_probabilities((batch, 1, width), case, generator).flatten(1)
    scores, parents = [score], [torch.zeros(batch, width, dtype=torch.int64)]
    first = 1
    for _ in range(1, case.shape.depth):
        # Expanded rows are W of the level above, in no particular order.
        chosen = torch.rand(score.shape, generator=generator).argsort(dim=1)[:, :width]
        child = _log_probabilities((batch, width, width), case, generator)
        parents.append((chosen + first).repeat_interleave(width, dim=1))
        first += score.shape[1]
        score = (score.gather(1, chosen)[:, :, None] + child).flatten(1)
        scores.append(score)
    capacity = case.shape.capacity
    inputs = {
        "root_tokens": torch.randint(1000, (batch,), generator=generator),
        "tokens": torch.randint(1000, (batch, capacity), generator=generator),
        "scores": torch.cat(scores, dim=1),
        "parents": torch.cat(parents, dim=1),
    }
    return {**{k: v.to(device) for k, v in inputs.items()}, "shape": case.shape}


def _log_probabilities(
    shape: tuple[int, int, int], case: BuildCase, generator: torch.Generator
) -> torch.Tensor:
    drawn = torch.randn(shape[0], shape[1], 4 * shape[2], generator=generator) * 2
    scores = drawn.log_softmax(dim=-1).topk(shape[2]).values
    coin = torch.rand(shape, generator=generator)
    if case.scores == "ties":
        return scores.round()
    if case.scores == "certain":
        return scores.masked_fill(coin < 0.5, 0.0)
    if case.scores == "rising":
        return -scores
    if case.scores == "holes":
        return scores.masked_fill(coin < 0.1, torch.nan).masked_fill(coin > 0.8, -torch.inf)
    if case.scores == "nothing":
        return torch.full(shape, -torch.inf)
    assert case.scores == "random", case.scores
    return scores
