# SPDX-License-Identifier: Apache-2.0
"""What a step accepted."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from vllm_eagle_pangu.core.indices import index_range

if TYPE_CHECKING:
    from vllm_eagle_pangu.core.tree import TreeBatch

STARTS_AT_ROOT = "path: it starts at the root"
CHILDREN = "path: each row is a child of the one before"
PADDING = "path: beyond its length rows are 0 and the output is -1"
TOKENS = "path: an accepted node's token is the one emitted"
DRAWS = "path: each output token is the target's draw at its row"


@dataclass
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

    def check(self, tree: "TreeBatch", draws: torch.Tensor) -> None:
        """Assert that these are paths of `tree` along `draws: [B, R] int64`; syncs with the device.

        Raises:
            AssertionError: names the invariant that does not hold.
        """
        place = index_range(self.rows.shape[1], self.rows.device)
        used, node = place <= self.length[:, None], place[1:] <= self.length[:, None]
        rows = self.rows.clamp(0, tree.rows - 1)
        above, below = rows[:, :-1], rows[:, 1:]
        holds = {
            STARTS_AT_ROOT: self.rows[:, :1] == 0,
            PADDING: used | ((self.rows == 0) & (self.output == -1)),
            CHILDREN: ~node
            | ((tree.parent.gather(1, below) == above) & tree.valid.gather(1, below) & (below > 0)),
            TOKENS: ~node | (tree.tokens.gather(1, below) == self.output[:, :-1]),
            DRAWS: ~used | (draws.gather(1, rows) == self.output),
        }
        for invariant, held in holds.items():
            assert bool(held.all()), invariant
