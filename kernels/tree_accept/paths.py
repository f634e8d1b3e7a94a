# SPDX-License-Identifier: Apache-2.0
"""What is accepted of trees."""

from dataclasses import dataclass

import torch

from vllm_eagle_pangu.kernels.indices import filled


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
    def empty(cls, batch: int, depth: int, device: torch.device) -> "AcceptedPaths":
        """Uninitialised; each allocated, as Triton compiles for what is aligned like that."""
        shapes = ((batch, depth + 1), (batch,), (batch, depth + 1))
        return cls(*(torch.empty(shape, dtype=torch.int64, device=device) for shape in shapes))

    @classmethod
    def of_roots(cls, drawn: torch.Tensor, depth: int) -> "AcceptedPaths":
        """Nothing accepted: each of B requests emits `drawn: [B] int64`. `depth`: D.

        `rows` and `length` are constants: never write to them.
        """
        batch, device = drawn.shape[0], drawn.device
        nothing = filled(-1, (batch, depth), device)
        output = torch.cat((drawn[:, None], nothing), dim=1)
        return cls(filled(0, (batch, depth + 1), device), filled(0, (batch,), device), output)
