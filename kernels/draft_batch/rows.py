# SPDX-License-Identifier: Apache-2.0
"""Input rows of the drafter's extend pass."""

from dataclasses import dataclass

import torch
from torch.nn.functional import pad


@dataclass
class DraftRows:
    """N' drafter rows of B requests, all tensors int64.

    `tokens: [N']`.
    `positions: [N']`: rotary positions, linear.
    `hidden_rows: [N']`: row of the target batch whose hidden state a row takes.
    `slots: [N']`: page slot, -1 for padded rows.
    `query_start: [B+1]`: first row of each request, then N'.
    `sample_rows: [B]`: the row whose output predicts the root's children.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    hidden_rows: torch.Tensor
    slots: torch.Tensor
    query_start: torch.Tensor
    sample_rows: torch.Tensor

    def padded(self, rows: int) -> "DraftRows":
        """Room for `rows` >= N' rows: those added are of no request and written nowhere."""
        extra = rows - self.tokens.shape[0]
        assert extra >= 0, (rows, self.tokens.shape)
        return DraftRows(
            tokens=pad(self.tokens, (0, extra)),
            positions=pad(self.positions, (0, extra)),
            hidden_rows=pad(self.hidden_rows, (0, extra)),
            slots=pad(self.slots, (0, extra), value=-1),
            query_start=self.query_start,
            sample_rows=self.sample_rows,
        )
