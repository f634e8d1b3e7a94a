# SPDX-License-Identifier: Apache-2.0
"""Inputs of tree_build, for tests and benchmarks; results are integers and copies, so exact."""

from dataclasses import dataclass
from typing import Any

import torch

from vllm_eagle_pangu.kernels.case_scores import spoilt
from vllm_eagle_pangu.kernels.tree_expand.frontier import level_slice


@dataclass(frozen=True)
class BuildCase:
    """Trees of `width` (per level), `depth` and at most `nodes`; `scores`: see `spoilt`."""

    name: str
    width: int
    depth: int
    nodes: int
    batch: int = 1
    scores: str = "random"


CASES = (
    BuildCase("one_node", 1, 1, 1),
    BuildCase("chain", 1, 5, 5, batch=3),
    BuildCase("chain_cut", 1, 6, 2, batch=2),
    BuildCase("one_level", 4, 1, 4, batch=2),
    BuildCase("small", 2, 3, 7, batch=4),
    BuildCase("cpu_preset", 4, 4, 12, batch=1),
    BuildCase("everything_kept", 3, 3, 21, batch=2),
    BuildCase("wide", 8, 6, 63, batch=5),
    BuildCase("ties", 4, 4, 16, batch=6, scores="ties"),
    BuildCase("certain", 4, 5, 16, batch=6, scores="certain"),
    BuildCase("rising", 3, 4, 9, batch=6, scores="rising"),
    BuildCase("holes", 3, 4, 20, batch=6, scores="holes"),
    BuildCase("nothing", 2, 2, 3, batch=2, scores="nothing"),
)


def make_inputs(case: BuildCase, seed: int = 0, device: str = "cpu") -> dict[str, Any]:
    """Keyword arguments of `tree_build`."""
    generator = torch.Generator().manual_seed(seed)
    batch, width = case.batch, case.width
    score = _log_probabilities((batch, 1, width), case, generator).flatten(1)
    scores, parents = [score], [torch.zeros(batch, width, dtype=torch.int64)]
    first = 1
    for _ in range(1, case.depth):
        # Expanded rows are W of the level above, in no particular order.
        chosen = torch.rand(score.shape, generator=generator).argsort(dim=1)[:, :width]
        child = _log_probabilities((batch, width, width), case, generator)
        parents.append((chosen + first).repeat_interleave(width, dim=1))
        first += score.shape[1]
        score = (score.gather(1, chosen)[:, :, None] + child).flatten(1)
        scores.append(score)
    capacity = level_slice(width, case.depth).stop
    inputs = {
        "root_tokens": torch.randint(1000, (batch,), generator=generator),
        "tokens": torch.randint(1000, (batch, capacity), generator=generator),
        "scores": torch.cat(scores, dim=1),
        "parents": torch.cat(parents, dim=1),
    }
    sizes = {"width": width, "depth": case.depth, "nodes": case.nodes}
    return {k: v.to(device) for k, v in inputs.items()} | sizes


def _log_probabilities(
    shape: tuple[int, int, int], case: BuildCase, generator: torch.Generator
) -> torch.Tensor:
    drawn = torch.randn(shape[0], shape[1], 4 * shape[2], generator=generator) * 2
    scores = drawn.log_softmax(dim=-1).topk(shape[2]).values
    return spoilt(scores, case.scores, generator)
