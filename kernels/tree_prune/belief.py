# SPDX-License-Identifier: Apache-2.0
"""How far a head is to be believed, by level and by what it says."""

import math
from dataclasses import dataclass

import torch

# Bins of the head's probability, at equal distances on the scale of its log-odds; as logarithms.
EDGES = tuple(-math.log1p(math.exp(-odds / 2)) for odds in range(-10, 11))
BINS = len(EDGES) + 1
# A bin believes the head like one that saw it be right so many times.
PRIOR = 8.0


@dataclass(frozen=True)
class Belief:
    """`seen`, `accepted: [D, BINS] float64`: nodes of a level that were tried, and of these the
    accepted ones, by the probability that the head gave them after their parents.
    """

    seen: torch.Tensor
    accepted: torch.Tensor

    @classmethod
    def empty(cls, depth: int, device: torch.device | str = "cpu") -> "Belief":
        """Nothing seen: the head's word is taken."""
        seen, accepted = torch.zeros(2, depth, BINS, dtype=torch.float64, device=device)
        return cls(seen, accepted)
