# SPDX-License-Identifier: Apache-2.0
"""Inputs of commit_slots, for tests and benchmarks; results are integers, so exact."""

from typing import Any

import torch

from vllm_eagle_pangu.kernels.tree_accept import cases as accept_cases
from vllm_eagle_pangu.kernels.tree_accept import tree_accept

CASES = accept_cases.CASES


def make_inputs(
    case: accept_cases.AcceptCase, seed: int = 0, device: str = "cpu"
) -> dict[str, Any]:
    """Keyword arguments of `commit_slots`: distinct slots in random order."""
    paths = tree_accept(**accept_cases.make_inputs(case, seed, device))
    generator = torch.Generator().manual_seed(seed)
    slots = torch.randperm(2 * case.batch * case.rows, generator=generator)
    linear_slots = slots[: case.batch * case.rows].view(case.batch, case.rows)
    return {"paths": paths, "linear_slots": linear_slots.to(device), "rows": case.rows}
