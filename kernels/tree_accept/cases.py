# SPDX-License-Identifier: Apache-2.0
"""Inputs of tree_accept, for tests and benchmarks; results are integers, so exact."""

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class AcceptCase:
    """Random trees of up to `rows` rows; the smaller the `vocab`, the longer the paths.

    `agreement`: chance that a draw is made to be the token of one of the row's children.
    """

    name: str
    rows: int
    depth: int
    batch: int = 1
    vocab: int = 1000
    agreement: float = 0.8


CASES = (
    AcceptCase("root_and_one_node", 2, 1),
    AcceptCase("chain_sized", 6, 5, batch=3),
    AcceptCase("cpu_preset", 13, 4, batch=1),
    AcceptCase("many_requests", 17, 4, batch=63),
    AcceptCase("deep", 33, 12, batch=7, agreement=1.0),
    AcceptCase("nothing_accepted", 17, 4, batch=5, agreement=0.0),
    AcceptCase("wide", 64, 6, batch=9),
    AcceptCase("siblings_share_tokens", 33, 5, batch=15, vocab=3),
)


def random_trees(
    rows: int, depth: int, batch: int, vocab: int, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens, parents and validity of trees no deeper than `depth`, most with some padding."""
    parent = torch.zeros(batch, rows, dtype=torch.int64)
    levels = torch.zeros(batch, rows, dtype=torch.int64)
    for row in range(1, rows):
        # A later row as parent is likelier: depth is what makes walks long.
        draw = torch.rand(batch, row, generator=generator) * torch.arange(1, row + 1)
        draw = draw.masked_fill(levels[:, :row] >= depth, -1.0)
        parent[:, row] = draw.argmax(dim=1)
        levels[:, row] = levels.gather(1, parent[:, row : row + 1])[:, 0] + 1
    tokens = torch.randint(vocab, (batch, rows), generator=generator)
    nodes = torch.randint((rows - 1) // 2, rows, (batch,), generator=generator)
    valid = torch.arange(rows) <= nodes[:, None]
    return tokens.where(valid, 0), parent.where(valid, 0), valid


def make_inputs(case: AcceptCase, seed: int = 0, device: str = "cpu") -> dict[str, Any]:
    """Keyword arguments of `tree_accept`."""
    generator = torch.Generator().manual_seed(seed)
    tokens, parent, valid = random_trees(case.rows, case.depth, case.batch, case.vocab, generator)
    shape = (case.batch, case.rows)
    draws = torch.randint(case.vocab, shape, generator=generator)
    is_child = valid[:, None, :] & (parent[:, None, :] == torch.arange(case.rows)[None, :, None])
    is_child[:, :, 0] = False
    child = (is_child * torch.rand(*shape, case.rows, generator=generator)).argmax(dim=2)
    agrees = is_child.any(dim=2) & (torch.rand(shape, generator=generator) < case.agreement)
    draws = tokens.gather(1, child).where(agrees, draws)
    if case.agreement == 0.0:
        draws = torch.full(shape, case.vocab)
    tensors = {"tokens": tokens, "parent": parent, "valid": valid, "draws": draws}
    return {**{k: v.to(device) for k, v in tensors.items()}, "depth": case.depth}
