# SPDX-License-Identifier: Apache-2.0
"""What a step accepted, and what holds of it."""

import torch

from vllm_eagle_pangu.core.tree import TreeBatch
from vllm_eagle_pangu.kernels.indices import index_range
from vllm_eagle_pangu.kernels.tree_accept import AcceptedPaths

__all__ = [
    "CHILDREN",
    "DRAWS",
    "PADDING",
    "STARTS_AT_ROOT",
    "TOKENS",
    "AcceptedPaths",
    "check_paths",
]

STARTS_AT_ROOT = "path: it starts at the root"
CHILDREN = "path: each row is a child of the one before"
PADDING = "path: beyond its length rows are 0 and the output is -1"
TOKENS = "path: an accepted node's token is the one emitted"
DRAWS = "path: each output token is the target's draw at its row"


def check_paths(paths: AcceptedPaths, tree: TreeBatch, draws: torch.Tensor) -> None:
    """Assert that `paths` are those of `tree` along `draws: [B, R] int64`; syncs with the device.

    Raises:
        AssertionError: names the invariant that does not hold.
    """
    place = index_range(paths.rows.shape[1], paths.rows.device)
    used, node = place <= paths.length[:, None], place[1:] <= paths.length[:, None]
    rows = paths.rows.clamp(0, tree.rows - 1)
    above, below = rows[:, :-1], rows[:, 1:]
    holds = {
        STARTS_AT_ROOT: paths.rows[:, :1] == 0,
        PADDING: used | ((paths.rows == 0) & (paths.output == -1)),
        CHILDREN: ~node
        | ((tree.parent.gather(1, below) == above) & tree.valid.gather(1, below) & (below > 0)),
        TOKENS: ~node | (tree.tokens.gather(1, below) == paths.output[:, :-1]),
        DRAWS: ~used | (draws.gather(1, rows) == paths.output),
    }
    for invariant, held in holds.items():
        assert bool(held.all()), invariant
