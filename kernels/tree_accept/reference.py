# SPDX-License-Identifier: Apache-2.0
"""Definition of tree_accept: follow the target's draws from the root."""

from dataclasses import dataclass

import torch

from vllm_eagle_pangu.kernels.indices import filled, index_range


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


def tree_accept(
    tokens: torch.Tensor,
    parent: torch.Tensor,
    valid: torch.Tensor,
    draws: torch.Tensor,
    depth: int,
) -> AcceptedPaths:
    """Walk each tree from its root along the target's draws, at most `depth` nodes.

    Where the draw at a row is the token of one of its valid children (the lowest row, if several
    carry it), that child is accepted; otherwise the draw is the bonus token and the walk ends.
    Every emitted token is thus a draw from the target given its prefix.

    `tokens`, `parent: [B, R] int64`, `valid: [B, R] bool`: see `tree_build.Trees`; `draws: [B, R]
    int64`: one target token per row; at padding rows anything.
    """
    batch, rows = draws.shape
    assert tokens.shape == draws.shape, (tokens.shape, draws.shape)
    row = index_range(rows, draws.device)
    drawn = valid & (draws.gather(1, parent) == tokens)
    # The root is its own parent, not its own child.
    drawn[:, 0] = False
    # Row `rows` is where every walk ends; it leads to itself.
    following = torch.full((batch, rows + 1), rows, device=draws.device)
    following.scatter_reduce_(1, parent, row.where(drawn, rows), reduce="amin")
    steps = [torch.zeros_like(draws[:, :1])]
    for _ in range(depth):
        steps.append(following.gather(1, steps[-1]))
    path = torch.cat(steps, dim=1)
    on_path = path < rows
    path = path.where(on_path, 0)
    return AcceptedPaths(
        rows=path,
        length=on_path.sum(dim=1) - 1,
        output=draws.gather(1, path).where(on_path, -1),
    )
