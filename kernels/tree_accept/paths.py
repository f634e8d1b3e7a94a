# SPDX-License-Identifier: Apache-2.0
"""What is accepted of trees."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class AcceptedPaths:
    """Accepted path of each of B requests; L is its length in nodes, 0 <= L <= D.

    `rows: [B, D+1] int64`: row 0 (the root), then the accepted node rows, then 0.
    `length: [B] int64`: L.
    `output: [B, D+1] int64`: the L accepted tokens, the bonus token, then -1. `output[b, i]` is
    the target's draw at row `rows[b, i]`.
    """

    rows: torch.Tensor
    length: torch.Tensor
    output: torch.Tensor

    @classmethod
    def of_roots(cls, drawn: torch.Tensor, depth: int) -> "AcceptedPaths":
        """Nothing accepted: each of B requests emits `drawn: [B] int64`. `depth`: D."""
        rows = torch.zeros(drawn.shape[0], depth + 1, dtype=torch.long, device=drawn.device)
        output = torch.full_like(rows, -1)
        output[:, 0] = drawn
        return cls(rows, torch.zeros_like(drawn), output)
