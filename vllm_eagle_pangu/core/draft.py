# SPDX-License-Identifier: Apache-2.0
"""Growing candidate trees level by level (EAGLE-2, section 4.1: expansion)."""

from dataclasses import dataclass

import torch

from vllm_eagle_pangu.core.indices import identity
from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.core.tree import TreeBatch
from vllm_eagle_pangu.kernels.tree_build import tree_build


@dataclass
class Frontier:
    """The W nodes per request that the next drafter pass expands, all at depth `level`.

    `tokens: [B, W] int64`.
    `score: [B, W] float32`: cumulative log-probability.
    `parent: [B, W] int64`: index into the previous frontier, from which a node takes its drafter
    state; 0 on the first level, where the parent is the root.
    `visible: [B, W, level*W] bool`: the scratch rows that a node attends. The pass at level l
    writes scratch rows (l-1)*W .. l*W - 1; a node sees its own row and its ancestors'.
    `level`: 1 for the root's children.
    """

    tokens: torch.Tensor
    score: torch.Tensor
    parent: torch.Tensor
    visible: torch.Tensor
    level: int


class TreeGrower:
    """Keeps the candidates of one step: `grow_first`, D-1 times `grow`, then `finish`."""

    def __init__(self, shape: TreeShape) -> None:
        self.shape = shape
        # One [B, W] or [B, W*W] tensor per level.
        self._tokens: list[torch.Tensor] = []
        self._scores: list[torch.Tensor] = []
        self._parents: list[torch.Tensor] = []
        # Of the current frontier: [B, W], 1 + candidate index.
        self._candidates: torch.Tensor
        self._frontier: Frontier

    def grow_first(self, scores: torch.Tensor, tokens: torch.Tensor) -> Frontier:
        """Take the root's children; all of them are the first frontier.

        `scores: [B, W]` log-probabilities of the W best children, best first, any float dtype;
        `tokens: [B, W] int64` in the target's vocabulary.
        """
        batch, width = tokens.shape
        assert width == self.shape.width and not self._tokens, (width, self.shape)
        score = _log_probabilities(scores)
        root = torch.zeros_like(tokens)
        self._keep(tokens, score, root)
        own = identity(width, tokens.device)
        self._candidates = torch.arange(1, width + 1, device=tokens.device).expand(batch, width)
        self._frontier = Frontier(tokens, score, root, own.expand(batch, width, width), level=1)
        return self._frontier

    def grow(self, scores: torch.Tensor, tokens: torch.Tensor) -> Frontier:
        """Take the W best children of each frontier row; the W best of all are the next frontier.

        `scores: [B, W, W]`, `tokens: [B, W, W] int64`: as in `grow_first`, for each frontier row.
        Equal scores go to the lower index.
        """
        batch, width, _ = tokens.shape
        level = self._frontier.level + 1
        assert level <= self.shape.depth, (level, self.shape)
        offset = self.shape.width + (level - 2) * width * width
        child_score = (_log_probabilities(scores) + self._frontier.score[:, :, None]).flatten(1)
        child_token = tokens.flatten(1)
        self._keep(child_token, child_score, self._candidates.repeat_interleave(width, dim=1))

        # Not topk: which of equal scores it takes is undefined.
        order = child_score.argsort(dim=1, descending=True, stable=True)[:, :width]
        parent = order.div(width, rounding_mode="floor")
        self._candidates = order + (offset + 1)
        above = self._frontier.visible
        inherited = above.gather(1, parent[:, :, None].expand(-1, -1, above.shape[2]))
        own = identity(width, tokens.device).expand(batch, width, width)
        self._frontier = Frontier(
            tokens=child_token.gather(1, order),
            score=child_score.gather(1, order),
            parent=parent,
            visible=torch.cat((inherited, own), dim=2),
            level=level,
        )
        return self._frontier

    def finish(self, root_tokens: torch.Tensor) -> TreeBatch:
        """The best M candidates of all levels as trees under `root_tokens: [B] int64`."""
        assert len(self._tokens) == self.shape.depth, (len(self._tokens), self.shape)
        return tree_build(
            root_tokens,
            torch.cat(self._tokens, dim=1),
            torch.cat(self._scores, dim=1),
            torch.cat(self._parents, dim=1),
            self.shape,
        )

    def _keep(self, tokens: torch.Tensor, scores: torch.Tensor, parents: torch.Tensor) -> None:
        self._tokens.append(tokens)
        self._scores.append(scores)
        self._parents.append(parents)


def _log_probabilities(scores: torch.Tensor) -> torch.Tensor:
    """float32, at most 0: a drafter's rounding must not let a child outrank its parent."""
    return scores.float().nan_to_num(nan=-torch.inf, posinf=0.0, neginf=-torch.inf).clamp(max=0.0)
