# SPDX-License-Identifier: Apache-2.0
"""Draft trees in plain lists: grown, cut to the node budget, walked.

Deliberately not the code of `core/` and `kernels/`: it is what those are compared with.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vllm_eagle_pangu.core.shape import TreeShape

from .drafter import DraftRow, KeyValue, ReferenceDrafter


@dataclass
class Tree:
    """A draft tree; row 0 is the root, and a parent's row is smaller than its children's.

    `tokens`, `parent`, `depth`, `score`: one entry per row; the root's parent is 0 and its
    score, a cumulative log-probability, is 0.0.
    """

    tokens: list[int]
    parent: list[int]
    depth: list[int]
    score: list[float]

    def path_to(self, row: int) -> list[int]:
        """Rows from the root down to `row`, both included."""
        return [0] if row == 0 else [*self.path_to(self.parent[row]), row]

    def leaves(self) -> list[int]:
        """Rows without children."""
        return [row for row in range(len(self.tokens)) if row not in self.parent[1:]] or [0]

    def visible(self) -> torch.Tensor:
        """`[R, R] bool`: a row sees the rows on its path."""
        rows = len(self.tokens)
        visible = torch.zeros(rows, rows, dtype=torch.bool)
        for row in range(rows):
            visible[row, self.path_to(row)] = True
        return visible

    def accept(self, draws: list[int]) -> list[int]:
        """The accepted path, root included, given one target token drawn after every row."""
        path = [0]
        while True:
            children = [r for r in range(1, len(self.tokens)) if self.parent[r] == path[-1]]
            drawn = [r for r in children if self.tokens[r] == draws[path[-1]]]
            if not drawn:
                return path
            path.append(drawn[0])


@dataclass
class _Candidate:
    token: int
    score: float
    depth: int
    # Candidate index, None for a child of the root.
    parent: int | None
    # The drafter row that proposed it, and the K/V of its proper ancestors' rows.
    proposed_by: DraftRow
    past: list[KeyValue]


def grow(
    drafter: ReferenceDrafter,
    root_token: int,
    # The drafter's row for the root token, and its committed rows including that one.
    root: DraftRow,
    committed: list[KeyValue],
    shape: TreeShape,
) -> Tree:
    """EAGLE-2: expand the W best of each level to W children each, then keep the M best."""
    candidates = _children(drafter, root, 0.0, None, 1, committed, shape.width)
    frontier = list(range(shape.width))
    for depth in range(2, shape.depth + 1):
        level: list[_Candidate] = []
        for index in frontier:
            above = candidates[index]
            # The first drafted token comes after the root's row, at position len(committed).
            position = len(committed) + depth - 2
            row = drafter.row(above.token, above.proposed_by.hidden, position, above.past)
            past = [*above.past, row.key_value]
            level += _children(drafter, row, above.score, index, depth, past, shape.width)
        first = len(candidates)
        candidates += level
        order = sorted(range(len(level)), key=lambda i: (-level[i].score, i))
        frontier = [first + i for i in order[: shape.width]]
    return _best(root_token, candidates, shape.nodes)


def _children(
    drafter: ReferenceDrafter,
    row: DraftRow,
    score: float,
    parent: int | None,
    depth: int,
    past: list[KeyValue],
    width: int,
) -> list[_Candidate]:
    best = row.log_probs.topk(width)
    tokens = drafter.target_ids[best.indices].tolist()
    # Sums in float32, like the op this is compared with.
    scores = (best.values + score).tolist()
    return [
        _Candidate(token, total, depth, parent, row, past)
        for token, total in zip(tokens, scores, strict=True)
    ]


def _best(root_token: int, candidates: list[_Candidate], nodes: int) -> Tree:
    scores: list[float] = []
    for candidate in candidates:
        above = 0.0 if candidate.parent is None else scores[candidate.parent]
        scores.append(min(candidate.score, above))
    order = sorted(range(len(candidates)), key=lambda i: (-scores[i], i))
    kept = sorted(order[:nodes])
    row_of = {index: row for row, index in enumerate(kept, start=1)}
    parents = [candidates[index].parent for index in kept]
    return Tree(
        tokens=[root_token, *(candidates[index].token for index in kept)],
        parent=[0, *(0 if parent is None else row_of[parent] for parent in parents)],
        depth=[0, *(candidates[index].depth for index in kept)],
        score=[0.0, *(scores[index] for index in kept)],
    )
