# SPDX-License-Identifier: Apache-2.0
"""Definition of tree_accept: follow the target's draws from the root."""

import torch

from vllm_eagle_pangu.kernels.indices import index_range
from vllm_eagle_pangu.kernels.tree_accept.paths import AcceptedPaths


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
