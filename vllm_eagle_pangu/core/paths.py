# SPDX-License-Identifier: Apache-2.0
"""What a step accepted, and what holds of it."""

import torch

from vllm_eagle_pangu.core.tree import TreeBatch
from vllm_eagle_pangu.kernels.indices import index_range
from vllm_eagle_pangu.kernels.tree_accept import AcceptedPaths

__all__ = ["LENGTH", "AcceptedPaths", "path_invariants"]

LENGTH = "path: its length is 0 to D"


def path_invariants(
    paths: AcceptedPaths, tree: TreeBatch | None, draws: torch.Tensor | None
) -> dict[str, torch.Tensor]:
    """By name, which places of the paths keep the invariant: `[B, D+1] bool`. Any values are taken.

    Those of `tree` and of `draws: [B, R] int64` are left out where that is None. A row that is no
    node of the tree breaks only the invariant that says so.
    """
    rows, output, length = paths.rows, paths.output, paths.length[:, None]
    place = index_range(rows.shape[1], rows.device)
    used = place <= length
    held = {
        LENGTH: ((length >= 0) & (length < rows.shape[1])).expand_as(rows),
        "path: it starts at the root": (place > 0) | (rows == 0),
        "path: beyond its length rows are 0 and the output is -1": (
            used | ((rows == 0) & (output == -1))
        ),
    }
    if tree is not None:
        node = used & (place > 0)
        row = rows.clamp(0, tree.rows - 1)
        in_tree = (rows == row) & (row > 0) & tree.valid.gather(1, row)
        # What the place before has: its row, and the token that was emitted after it.
        above, emitted = rows.roll(1, dims=1), output.roll(1, dims=1)
        stranger = ~node | ~in_tree
        held |= {
            "path: its rows are nodes of the tree": ~node | in_tree,
            "path: each row is a child of the one before": (
                stranger | (tree.parent.gather(1, row) == above)
            ),
            "path: an accepted node's token is the one emitted": (
                stranger | (tree.tokens.gather(1, row) == emitted)
            ),
        }
    if draws is not None:
        row = rows.clamp(0, draws.shape[1] - 1)
        drawn = (rows == row) & (draws.gather(1, row) == output)
        held["path: each output token is the target's draw at its row"] = ~used | drawn
    return held
