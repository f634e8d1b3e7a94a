# SPDX-License-Identifier: Apache-2.0
"""Growing candidate trees level by level (EAGLE-2, section 4.1: expansion)."""

import torch

from vllm_eagle_pangu.core.ops import Ops
from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.core.tree import TreeBatch
from vllm_eagle_pangu.kernels.tree_expand import Candidates, Frontier


class TreeGrower:
    """Keeps the candidates of one step: `grow` for each level, D at most, then `finish`.

    Frontiers compare candidates of one level; `finish` compares those of all levels.
    """

    def __init__(self, shape: TreeShape, ops: Ops) -> None:
        self.shape = shape
        self.ops = ops
        self._candidates: Candidates
        self._frontier: Frontier | None = None

    def grow(self, scores: torch.Tensor, tokens: torch.Tensor) -> Frontier:
        """Take the W best children of each frontier row; the W best of all are the next frontier.

        The first time those of the root, which all are: `scores: [B, W]` log-probabilities, best
        first, any float dtype; `tokens: [B, W] int64` in the target's vocabulary. Then `[B, W, W]`
        each, for each frontier row. Equal scores go to the lower index.
        """
        if self._frontier is None:
            width, depth = self.shape.width, self.shape.depth
            assert tokens.shape[1:] == (width,), (tokens.shape, self.shape)
            self._candidates = Candidates.empty(len(tokens), width, depth, tokens.device)
        else:
            assert self._frontier.level < self.shape.depth, self.shape
        self._frontier = self.ops.tree_expand(self._candidates, self._frontier, scores, tokens)
        return self._frontier

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
