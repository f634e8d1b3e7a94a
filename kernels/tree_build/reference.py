# SPDX-License-Identifier: Apache-2.0
"""Definition of tree_build: the best M candidates, closed under ancestors."""

from dataclasses import dataclass

import torch

from vllm_eagle_pangu.kernels.indices import candidate_levels, index_range
from vllm_eagle_pangu.kernels.mask import ancestor_table, visible_rows
from vllm_eagle_pangu.kernels.tree_expand.frontier import level_slice


@dataclass(frozen=True)
class Trees:
    """B trees of R = M+1 rows: the root in row 0, nodes in topological order, then padding.

    A parent's row is smaller than its children's, so the first n nodes are a tree for any n.
    Padding rows have token 0, parent 0, depth 0 and score -inf, and no valid row sees them.

    `tokens: [B, R] int64`; column 0 holds the root tokens.
    `parent: [B, R] int64`: row of the parent; 0 for the root.
    `depth: [B, R] int64`: 0 at the root.
    `valid: [B, R] bool`: root and nodes, not padding.
    `visible: [B, R, R] bool`: see `kernels.mask.visible_rows`.
    `score: [B, R] float32`: cumulative draft log-probability, 0 at the root.
    """

    tokens: torch.Tensor
    parent: torch.Tensor
    depth: torch.Tensor
    valid: torch.Tensor
    visible: torch.Tensor
    score: torch.Tensor

    @classmethod
    def empty(cls, batch: int, rows: int, device: torch.device) -> "Trees":
        """Uninitialised, all contiguous."""
        size = (batch, rows)
        return cls(
            tokens=torch.empty(size, dtype=torch.int64, device=device),
            parent=torch.empty(size, dtype=torch.int64, device=device),
            depth=torch.empty(size, dtype=torch.int64, device=device),
            valid=torch.empty(size, dtype=torch.bool, device=device),
            visible=torch.empty((*size, rows), dtype=torch.bool, device=device),
            score=torch.empty(size, dtype=torch.float32, device=device),
        )


def check_sizes(capacity: int, width: int, depth: int, nodes: int) -> None:
    """Assert that so many candidates are those of a tree, and enough for the nodes to keep."""
    assert capacity == level_slice(width, depth).stop, (capacity, width, depth)
    assert 1 <= nodes <= capacity, (nodes, capacity)


def tree_build(
    root_tokens: torch.Tensor,
    tokens: torch.Tensor,
    scores: torch.Tensor,
    parents: torch.Tensor,
    width: int,
    depth: int,
    nodes: int,
) -> Trees:
    """Keep the M = `nodes` best candidates of each request, closed under ancestors.

    Source: EAGLE-2, section 4.2: reranking. Equal scores go to the lower index, NaN counts as -inf,
    and -inf is never kept. A child's score is first lowered to its parent's, so whatever is kept,
    its ancestors are. Nodes come in candidate order, which is topological.

    `root_tokens: [B] int64`; `tokens: [B, C] int64`, `scores: [B, C] float32` cumulative
    log-probabilities, `parents: [B, C] int64`: C candidates of trees of `width` and `depth`, level
    by level; a parent is 0 for the root, else 1 + the index of a candidate of the level above.
    """
    batch, capacity = tokens.shape
    check_sizes(capacity, width, depth, nodes)
    # Position 0 is the root, position c + 1 candidate c, and the last one stands for padding.
    padding = capacity + 1
    score = scores.new_full((batch, capacity + 2), -torch.inf)
    torch.nan_to_num(
        scores, nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf, out=score[:, 1:padding]
    )
    score[:, 0] = torch.inf
    _lower_to_parents(score, parents, width)
    token, parent = tokens.new_zeros(2, batch, capacity + 2)
    token[:, 0] = root_tokens
    token[:, 1:padding] = tokens
    parent[:, 1:padding] = parents

    # The sort is stable and parents precede children: the best R are closed under ancestors.
    best, order = score.sort(dim=1, descending=True, stable=True)
    kept = order[:, : nodes + 1].masked_fill(best[:, : nodes + 1] == -torch.inf, padding)
    kept = kept.sort(dim=1).values
    row_of = torch.zeros_like(token)
    row = index_range(nodes + 1, token.device).expand(batch, -1)
    row_of.scatter_(1, kept, row)

    valid = kept != padding
    new_parent = row_of.gather(1, parent.gather(1, kept))
    kept_score = score.gather(1, kept)
    kept_score[:, 0] = 0.0
    return Trees(
        tokens=token.gather(1, kept),
        parent=new_parent,
        depth=candidate_levels(width, depth, token.device)[kept],
        valid=valid,
        visible=visible_rows(ancestor_table(new_parent, depth), valid),
        score=kept_score,
    )


def _lower_to_parents(score: torch.Tensor, parents: torch.Tensor, width: int) -> None:
    """Lower each child's score to its parent's, in place, level by level from the top.

    Cumulative scores should already be so; a probability of 1.0 ties, a rounded one may exceed.
    """
    square = width * width
    for first in range(width, parents.shape[1], square):
        level = score[:, first + 1 : first + 1 + square]
        level.copy_(level.minimum(score.gather(1, parents[:, first : first + square])))
