# SPDX-License-Identifier: Apache-2.0
"""Who sees whom in a tree: ancestor table and attention mask, both from `parent`."""

import torch

from vllm_eagle_pangu.kernels.indices import index_range


def ancestor_table(parent: torch.Tensor, depth: int) -> torch.Tensor:
    """`[B, D+1, R] int64`: entry [b, l, k] is the l-th ancestor of row k, the root's being itself.

    `parent: [B, R] int64` with `parent[:, 0] = 0`; `depth`: D.
    """
    levels = [index_range(parent.shape[1], parent.device).expand_as(parent)]
    for _ in range(depth):
        levels.append(parent.gather(1, levels[-1]))
    return torch.stack(levels, dim=1)


def visible_rows(ancestors: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """`[B, R, R] bool`: row k sees row j iff j is k or its ancestor and j is valid.

    A padding row has parent 0 and so sees the root alone: its softmax stays finite, and nothing
    flows out of it. `ancestors: [B, D+1, R] int64`; `valid: [B, R] bool`.
    """
    batch, _, rows = ancestors.shape
    visible = torch.zeros(batch, rows, rows, dtype=torch.bool, device=valid.device)
    visible.scatter_(2, ancestors.transpose(1, 2), True)
    return visible.logical_and_(valid[:, None, :])
