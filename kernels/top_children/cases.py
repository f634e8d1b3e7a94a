# SPDX-License-Identifier: Apache-2.0
"""Inputs of top_children, for tests: tokens are exact, log-probabilities to `TOLERANCE`."""

from dataclasses import dataclass
from typing import Any

import torch

# Of log-probabilities, absolute: sums of float32 in another order.
TOLERANCE = 1e-5


@dataclass(frozen=True)
class TopCase:
    """`logits` is one of

    "random": normally distributed;
    "ties": the same, rounded to whole numbers;
    "rising": sorted, so that each is a new best;
    "holes": some are NaN or -inf;
    "nothing": NaN and -inf alone in even rows;
    "infinite": +inf several times in even rows.
    """

    name: str
    rows: int
    vocab: int
    width: int
    logits: str = "random"
    dtype: torch.dtype = torch.float32
    mapped: bool = False


CASES = (
    TopCase("one_token", 2, 1, 1),
    TopCase("everything", 3, 7, 7, "ties"),
    TopCase("odd", 5, 63, 4, mapped=True),
    TopCase("bfloat16", 4, 1000, 8, dtype=torch.bfloat16, mapped=True),
    TopCase("float16", 4, 4097, 4, dtype=torch.float16),
    TopCase("ties", 6, 1000, 16, "ties", mapped=True),
    TopCase("rising", 2, 9000, 8, "rising"),
    TopCase("holes", 6, 200, 16, "holes", mapped=True),
    TopCase("nothing", 4, 130, 5, "nothing"),
    TopCase("infinite", 4, 130, 5, "infinite"),
    TopCase("draft_vocabulary", 2, 32_000, 8, "ties", torch.bfloat16, mapped=True),
    TopCase("target_vocabulary", 1, 151_936, 4, dtype=torch.bfloat16),
)


def make_inputs(case: TopCase, seed: int = 0, device: str = "cpu") -> dict[str, Any]:
    """Keyword arguments of `top_children`."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(case.rows, case.vocab, generator=generator) * 4
    coin = torch.rand(logits.shape, generator=generator)
    row, token = torch.arange(case.rows)[:, None], torch.arange(case.vocab)
    even, holes = row % 2 == 0, logits.masked_fill(coin < 0.5, torch.nan)
    logits = {
        "random": logits,
        "ties": logits.round(),
        "rising": logits.sort().values,
        "holes": holes.masked_fill(coin > 0.6, -torch.inf),
        "nothing": holes.masked_fill(coin >= 0.5, -torch.inf).where(even, logits),
        "infinite": logits.masked_fill(even & (token % 50 == 0), torch.inf),
    }[case.logits]
    target_ids = torch.randperm(2 * case.vocab, generator=generator)[: case.vocab]
    return {
        "logits": logits.to(device, case.dtype),
        "width": case.width,
        "target_ids": target_ids.to(device) if case.mapped else None,
    }
