# SPDX-License-Identifier: Apache-2.0
"""Inputs of draft_batch, for tests and benchmarks; results are integers, so exact."""

from dataclasses import dataclass
from typing import Any

import torch

from vllm_eagle_pangu.kernels.tree_accept.reference import AcceptedPaths


@dataclass(frozen=True)
class DraftBatchCase:
    """`tree_rows[b]` target rows of request b, or 0 where it has no tree and `chain_rows[b]`."""

    name: str
    depth: int
    tree_rows: tuple[int, ...]
    chain_rows: tuple[int, ...]


CASES = (
    DraftBatchCase("one_tree", 4, (13,), (0,)),
    DraftBatchCase("trees", 4, (13, 13, 13), (0, 0, 0)),
    DraftBatchCase("tree_cut_to_its_root", 4, (1, 13), (0, 0)),
    DraftBatchCase("tree_cut_below_depth", 5, (3, 2, 6), (0, 0, 0)),
    DraftBatchCase("decode_without_tree", 4, (0, 0), (1, 1)),
    DraftBatchCase("prefill", 3, (0,), (63,)),
    DraftBatchCase("mixed", 4, (0, 17, 0, 9, 1, 0), (40, 0, 1, 0, 0, 5)),
    DraftBatchCase("without_rows", 4, (0, 9, 0), (0, 0, 0)),
)


def make_inputs(case: DraftBatchCase, seed: int = 0, device: str = "cpu") -> dict[str, Any]:
    """Keyword arguments of `draft_batch`. What must be ignored is out of any sensible range."""
    generator = torch.Generator().manual_seed(seed)
    batch = len(case.tree_rows)
    is_tree = torch.tensor(case.tree_rows) > 0
    count = torch.tensor(case.tree_rows) + torch.tensor(case.chain_rows)
    rows = int(count.sum())
    path_rows = torch.zeros(batch, case.depth + 1, dtype=torch.int64)
    output = torch.full_like(path_rows, -1)
    length = torch.zeros(batch, dtype=torch.int64)
    for b in range(batch):
        nodes = case.tree_rows[b] - 1
        if nodes < 0:
            path_rows[b], output[b], length[b] = -7, -7, 10**6
            continue
        taken = int(torch.randint(min(nodes, case.depth) + 1, (), generator=generator))
        path = torch.randperm(nodes, generator=generator)[:taken].sort().values + 1
        path_rows[b, 1 : taken + 1] = path
        output[b, : taken + 1] = torch.randint(1000, (taken + 1,), generator=generator)
        length[b] = taken
    inputs = {
        "input_ids": torch.randint(1000, (rows,), generator=generator),
        "positions": torch.randint(5000, (rows,), generator=generator),
        "query_start": torch.cat((torch.zeros(1, dtype=torch.int64), count.cumsum(0))).int(),
        "is_tree": is_tree,
        "next_tokens": torch.randint(1000, (batch,), generator=generator).where(~is_tree, -7),
        "linear_slots": torch.randperm(2 * rows, generator=generator)[:rows],
    }
    paths = AcceptedPaths(path_rows.to(device), length.to(device), output.to(device))
    return {
        **{k: v.to(device) for k, v in inputs.items()},
        "paths": paths,
        "depth": case.depth,
        "rows": sum(case.depth + 1 for rows in case.tree_rows if rows) + sum(case.chain_rows),
    }
