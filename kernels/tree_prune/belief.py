# SPDX-License-Identifier: Apache-2.0
"""How far a head is to be believed, by what it says."""

from dataclasses import dataclass

import torch

# Probabilities nearer to 0 or 1 are taken for these, as logarithms.
LEAST, MOST = -13.8, -1e-6
# Before anything was seen, how firmly the head's word is taken.
PRIOR = 2.0
# How far each number of the line moves at most by the trees of one step.
STEP = 1.0


@dataclass(frozen=True)
class Belief:
    """A node is accepted after its parent with log-odds `line[0] + line[1] * x`.

    x: the log-odds that the head gave it. `line: [2]`; `information: [2, 2]`, of what was seen, in
    the logistic regression of late: `float64`.
    """

    line: torch.Tensor
    information: torch.Tensor

    @classmethod
    def empty(cls, device: torch.device | str = "cpu") -> "Belief":
        """Nothing seen: the head's word is taken."""
        line = torch.tensor([0.0, 1.0], dtype=torch.float64, device=device)
        return cls(line, line.new_zeros(2, 2))
