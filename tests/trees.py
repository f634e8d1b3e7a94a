# SPDX-License-Identifier: Apache-2.0
"""Trees by hand."""

import torch

from vllm_eagle_pangu.core.tree import TreeBatch
from vllm_eagle_pangu.kernels.mask import ancestor_table, visible_rows


def tree_of_parents(
    tokens: torch.Tensor,
    parent: torch.Tensor,
    max_depth: int,
    valid: torch.Tensor | None = None,
    score: torch.Tensor | None = None,
) -> TreeBatch:
    """Depth and mask derived, all rows valid and scored 0 by default.

    `tokens`, `parent: [B, R] int64`; `valid: [B, R] bool`; `score: [B, R] float32`.
    Rows that are not valid are made padding.
    """
    if valid is None:
        valid = torch.ones_like(parent, dtype=torch.bool)
    if score is None:
        score = torch.zeros(parent.shape, dtype=torch.float32, device=parent.device)
    parent = parent.where(valid, 0)
    ancestors = ancestor_table(parent, max_depth)
    return TreeBatch(
        tokens=tokens.where(valid, 0),
        parent=parent,
        depth=(ancestors[:, :-1] != 0).sum(dim=1).where(valid, 0),
        valid=valid,
        visible=visible_rows(ancestors, valid),
        score=score.masked_fill(~valid, -torch.inf),
        max_depth=max_depth,
    )
