# SPDX-License-Identifier: Apache-2.0
"""Inputs of tree_prune and tally_paths, for tests and benchmarks."""

from dataclasses import dataclass
from typing import Any

import torch

from vllm_eagle_pangu.kernels.mask import ancestor_table, visible_rows
from vllm_eagle_pangu.kernels.tree_accept.cases import AcceptCase
from vllm_eagle_pangu.kernels.tree_accept.cases import make_inputs as accept_inputs
from vllm_eagle_pangu.kernels.tree_build.reference import Trees
from vllm_eagle_pangu.kernels.tree_prune.reference import Belief

# Of a chance, between implementations: both compute in float64, from the same float32 scores.
TOLERANCE = 1e-12


@dataclass(frozen=True)
class PruneCase:
    """Random trees of up to `rows` rows; a row costs `row_cost` tokens of time.

    `sure`: every node is given the same probability, 1, so that all are equally likely. `kinds`: of
    trees, drawn at random.
    """

    name: str
    rows: int
    depth: int
    batch: int = 1
    row_cost: float = 0.1
    sure: bool = False
    kinds: int = 1


CASES = (
    PruneCase("root_and_one_node", 2, 1),
    PruneCase("cpu_preset", 17, 5),
    PruneCase("many_requests", 17, 5, batch=32),
    PruneCase("free", 17, 5, batch=7, row_cost=0.0),
    PruneCase("too_dear", 17, 5, batch=7, row_cost=1.5),
    PruneCase("deep", 33, 12, batch=5, row_cost=0.01),
    PruneCase("all_sure", 17, 5, batch=3, sure=True),
    PruneCase("some_sampled", 17, 5, batch=32, kinds=3),
)


def make_inputs(case: PruneCase, seed: int = 0, device: str = "cpu") -> dict[str, Any]:
    """Keyword arguments of `tree_prune`."""
    generator = torch.Generator().manual_seed(seed)
    drawn = accept_inputs(AcceptCase("", case.rows, case.depth, case.batch), seed)
    tokens, parent, valid = (drawn[name] for name in ("tokens", "parent", "valid"))
    ancestors = ancestor_table(parent, case.depth)
    said = torch.rand(parent.shape, generator=generator).clamp(1e-4, 1.0).log()
    score = torch.zeros(parent.shape)
    for row in range(1, case.rows):
        above = score.gather(1, parent[:, row : row + 1])[:, 0]
        score[:, row] = above if case.sure else above + said[:, row]
    trees = {
        "tokens": tokens,
        "parent": parent,
        "depth": (ancestors[:, :-1] != 0).sum(dim=1).where(valid, 0),
        "valid": valid,
        "visible": visible_rows(ancestors, valid),
        "score": score.masked_fill(~valid, -torch.inf),
    }
    line = torch.randn(case.kinds, 3, generator=generator, dtype=torch.float64).abs()
    information = (10 * torch.eye(3).double()).repeat(case.kinds, 1, 1)
    kind = torch.randint(case.kinds, (case.batch,), generator=generator)
    nodes = torch.arange(case.batch * (case.rows - 1) + 1, dtype=torch.float64)
    return {
        "trees": Trees(**{name: tensor.to(device) for name, tensor in trees.items()}),
        "kind": kind.to(device),
        "belief": Belief(line.to(device), information.to(device)),
        "cost": (case.row_cost * nodes).to(device),
    }
