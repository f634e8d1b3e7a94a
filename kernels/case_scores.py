# SPDX-License-Identifier: Apache-2.0
"""Scores of cases: as a drafter gives them, or as none should."""

import torch


def spoilt(scores: torch.Tensor, how: str, generator: torch.Generator) -> torch.Tensor:
    """`scores`, log-probabilities, made one of

    "random": left alone;
    "ties": rounded to whole numbers;
    "certain": half are 0, so that children tie with their parents;
    "rising": some are above 0 or +inf, so that children outrank their parents;
    "holes": some are NaN or -inf;
    "nothing": all are -inf.
    """
    coin = torch.rand(scores.shape, generator=generator)
    return {
        "random": scores,
        "ties": scores.round(),
        "certain": scores.masked_fill(coin < 0.5, 0.0),
        "rising": (-scores).where(coin < 0.5, scores).masked_fill(coin > 0.8, torch.inf),
        "holes": scores.masked_fill(coin < 0.1, torch.nan).masked_fill(coin > 0.8, -torch.inf),
        "nothing": torch.full_like(scores, -torch.inf),
    }[how]
