# SPDX-License-Identifier: Apache-2.0
"""Who sees whom in a tree: ancestor table, attention mask and child links, all from `parent`."""

import torch
from torch.nn.functional import pad

from vllm_eagle_pangu.core.indices import index_range


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


def pack_bits(visible: torch.Tensor) -> torch.Tensor:
    """`[B, R, ceil(R / 32)] int32`: bit j % 32 of word j // 32 says whether a row sees row j.

    `visible: [B, R, R] bool`.
    """
    columns = visible.shape[2]
    bits = pad(visible, (0, -columns % 32)).unflatten(2, (-1, 32)).long()
    words = (bits << index_range(32, visible.device)).sum(dim=3)
    # Bit 31 is the sign of the word.
    return (words - ((words >> 31) << 32)).int()


def child_links(parent: torch.Tensor, valid: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """First child and next sibling of each row, both `[B, R] int64`, 0 for none.

    `parent: [B, R] int64`; `valid: [B, R] bool`.
    """
    row = index_range(parent.shape[1], parent.device)
    node = valid & (row > 0)
    # [b, k, j]: node j is a child of row k; [b, k, j]: node j is a later sibling of node k.
    child = (parent[:, None, :] == row[None, :, None]) & node[:, None, :]
    sibling = (parent[:, None, :] == parent[:, :, None]) & node[:, None, :] & node[:, :, None]
    sibling &= row[None, :] > row[:, None]
    # argmax of an all-false line is column 0, which is "none".
    return child.int().argmax(dim=2), sibling.int().argmax(dim=2)
