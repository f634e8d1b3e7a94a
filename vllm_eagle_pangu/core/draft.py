# SPDX-License-Identifier: Apache-2.0
"""Growing candidate trees level by level (EAGLE-2, section 4.1: expansion)."""

import torch

from vllm_eagle_pangu.core.ops import Ops
from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.core.tree import TreeBatch
from vllm_eagle_pangu.kernels.tree_expand import Candidates, Frontier


class TreeGrower:
    """Keeps the candidates of one step: `grow_first`, up to D-1 times `grow`, then `finish`.

    Frontiers compare candidates of one level; `finish` compares those of all levels.
    """

    def __init__(self, shape: TreeShape, ops: Ops) -> None:
        self.shape = shape
        self.ops = ops
        self._candidates: Candidates
        self._frontier: Frontier | None = None

    def grow_first(self, scores: torch.Tensor, tokens: torch.Tensor) -> Frontier:
        """Take the root's children; all of them are the first frontier.

        `scores: [B, W]` log-probabilities of the W best children, best first, any float dtype;
        `tokens: [B, W] int64` in the target's vocabulary.
        """
        batch, width = tokens.shape
        assert width == self.shape.width and self._frontier is None, (width, self.shape)
        self._candidates = Candidates.empty(batch, width, self.shape.depth, tokens.device)
        return self._expand(scores, tokens)

    def grow(self, scores: torch.Tensor, tokens: torch.Tensor) -> Frontier:
        """Take the W best children of each frontier row; the W best of all are the next frontier.

        `scores: [B, W, W]`, `tokens: [B, W, W] int64`: as in `grow_first`, for each frontier row.
        Equal scores go to the lower index.
        """
        assert self._frontier is not None and self._frontier.level < self.shape.depth, self.shape
        return self._expand(scores, tokens)

    def finish(self, root_tokens: torch.Tensor) -> TreeBatch:
        """The best M candidates of all levels as trees under `root_tokens: [B] int64`."""
        assert self._frontier is not None
        width, depth = self.shape.width, self._frontier.level
        kept = self._candidates.of_levels(depth, width)
        nodes = min(self.shape.nodes, TreeShape(width, depth, 1).capacity)
        trees = self.ops.tree_build(
            root_tokens, kept.tokens, kept.scores, kept.parents, width, depth, nodes
        )
        return TreeBatch.of(trees, depth)

    def _expand(self, scores: torch.Tensor, tokens: torch.Tensor) -> Frontier:
        self._frontier = self.ops.tree_expand(self._candidates, self._frontier, scores, tokens)
        return self._frontier
