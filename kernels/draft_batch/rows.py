# SPDX-License-Identifier: Apache-2.0
"""Input rows of the drafter's extend pass."""

from dataclasses import dataclass

import torch


@dataclass
class DraftRows:
    """N' drafter rows of B requests; tensors int64.

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

    @classmethod
    def empty(cls, batch: int, rows: int, device: torch.device) -> "DraftRows":
        """Room for `rows` rows: slices of one uninitialised tensor."""
        block = torch.empty(4 * rows + 2 * batch + 1, dtype=torch.int64, device=device)
        return cls(*block.split_with_sizes((rows, rows, rows, rows, batch + 1, batch)))
