# SPDX-License-Identifier: Apache-2.0
"""Inputs of tree_expand, for tests; results are integers, copies and sums of two: exact."""

from dataclasses import dataclass
from typing import Any

import torch

from vllm_eagle_pangu.kernels.case_scores import spoilt
from vllm_eagle_pangu.kernels.tree_expand.frontier import Candidates, Frontier, level_slice


@dataclass(frozen=True)
class ExpandCase:
    """Level `level` of trees of width W; `scores`: see `spoilt`."""

    name: str
    width: int
    level: int
    batch: int = 1
    scores: str = "random"
    dtype: torch.dtype = torch.float32


CASES = (
    ExpandCase("chain_root", 1, 1, batch=3),
    ExpandCase("chain", 1, 4, batch=3),
    ExpandCase("root", 4, 1, batch=2),
    ExpandCase("root_spoilt", 5, 1, 3, "holes"),
    ExpandCase("second_level", 3, 2, batch=4),
    ExpandCase("wide", 8, 6, batch=5),
    ExpandCase("widest", 16, 3, 2, "ties"),
    ExpandCase("ties", 4, 4, 6, "ties"),
    ExpandCase("certain", 3, 3, 6, "certain"),
    ExpandCase("rising", 5, 2, 6, "rising"),
    ExpandCase("holes", 3, 4, 6, "holes"),
    ExpandCase("nothing", 2, 2, 2, "nothing"),
    ExpandCase("bfloat16", 7, 3, 2, dtype=torch.bfloat16),
)


def make_inputs(case: ExpandCase, seed: int = 0, device: str = "cpu") -> dict[str, Any]:
    """Keyword arguments of `tree_expand`; candidates of other levels, to be left alone, are -7."""
    generator = torch.Generator().manual_seed(seed)
    batch, width, level = case.batch, case.width, case.level
    size = (batch, width) if level == 1 else (batch, width, width)
    candidates = Candidates.empty(batch, width, level + 1, torch.device(device))
    for part in vars(candidates).values():
        part.fill_(-7)
    above = None
    if level > 1:
        kept = level_slice(width, level - 1)
        order = torch.rand(batch, kept.stop - kept.start, generator=generator).argsort(dim=1)
        score = torch.rand(batch, width, generator=generator).log()
        score = score.round() if case.scores == "ties" else score
        parts = {
            "tokens": torch.randint(1000, (batch, width), generator=generator),
            "score": score.sort(dim=1, descending=True).values,
            "parent": torch.randint(width, (batch, width), generator=generator),
            "visible": torch.rand(batch, width, (level - 1) * width, generator=generator) < 0.5,
            "candidate": order[:, :width] + kept.start + 1,
        }
        above = Frontier(**{k: v.to(device) for k, v in parts.items()}, level=level - 1)
    scores = spoilt(torch.rand(size, generator=generator).log(), case.scores, generator)
    return {
        "candidates": candidates,
        "above": above,
        "scores": scores.to(device, case.dtype),
        "tokens": torch.randint(1000, size, generator=generator).to(device),
    }
