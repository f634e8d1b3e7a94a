# SPDX-License-Identifier: Apache-2.0
"""τ of every shape from trees that hold every candidate, grown at every position of a text.

The tree of width W, depth D and budget M is what `tree_build` keeps of the growth of width W: of
its first D levels the M best candidates. So one growth per width and position says what any D and
M would have had accepted there, and a walk from step to step gives τ as that shape would decode.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.core.tree import TreeBatch

# A budget that no tree has: the node was not drafted.
NEVER = np.iinfo(np.int32).max


@dataclass(frozen=True)
class Growth:
    """All candidates of one growth, in candidate order, the root first.

    `tokens`, `parent`, `depth: [R] int64`, `score: [R] float32`, as in `TreeBatch`.
    """

    tokens: np.ndarray
    parent: np.ndarray
    depth: np.ndarray
    score: np.ndarray

    @classmethod
    def of(cls, tree: TreeBatch) -> "list[Growth]":
        """Those of a batch, on the host; candidates that nothing reaches are left out."""
        arrays = [t.cpu().numpy() for t in (tree.tokens, tree.parent, tree.depth, tree.score)]
        counts = tree.node_count.tolist()
        return [
            cls(*(array[row, : count + 1].copy() for array in arrays))
            for row, count in enumerate(counts)
        ]

    def needed(self, following: Sequence[int], depth: int) -> np.ndarray:
        """`[D, D] int32`: the smallest M for which [i, j] is accepted.

        i + 1 is the depth of the tree, j + 1 that of the node on the path of the `following`
        tokens; `NEVER` where it is no candidate.
        """
        budget = np.full((depth, depth), NEVER, dtype=np.int32)
        row = 0
        for level, token in enumerate(following[:depth]):
            children = np.flatnonzero((self.parent == row) & (self.tokens == token))
            children = children[children > 0]
            if children.size == 0:
                break
            row = int(children[0])
            budget[level:, level] = self._ranks(row, depth)[level:]
        return budget

    def _ranks(self, row: int, depth: int) -> np.ndarray:
        """`[D]`: the node's rank, from 1, among the candidates of the first 1, 2, ... levels."""
        index = np.arange(len(self.score))
        own = self.score[row]
        ahead = (self.score > own) | ((self.score == own) & (index <= row))
        # The root is row 0 and in no budget.
        per_level = np.bincount(self.depth[1:][ahead[1:]], minlength=depth + 1)
        return per_level.cumsum()[1 : depth + 1]


@dataclass
class Recording:
    """Per request, the emitted tokens and at each position the growth of every width.

    `texts[request][k]` is the root of the k-th position, `needed[width][request][k]` what
    `Growth.needed` says there; `whole` are the requests that ended by themselves.
    """

    depth: int
    texts: dict[str, list[int]] = field(default_factory=dict)
    needed: dict[int, dict[str, np.ndarray]] = field(default_factory=dict)
    whole: set[str] = field(default_factory=set)

    @property
    def positions(self) -> int:
        """Over all requests."""
        return sum(map(len, self.texts.values()))

    def tau(self, shape: TreeShape) -> float | None:
        """Tokens per step of `shape`, None where no text is long enough for a step."""
        steps = emitted = 0
        budgets = self.needed[shape.width]
        for request, text in self.texts.items():
            needed = budgets[request][:, shape.depth - 1, : shape.depth]
            accepted = (needed <= shape.nodes).sum(axis=1).tolist()
            lengths = step_lengths(accepted, len(text), self._last_step(request))
            steps += len(lengths)
            emitted += sum(lengths)
        return emitted / steps if steps else None

    def _last_step(self, request: str) -> int:
        """Where the last step may start: no text is judged by tokens behind its cut."""
        length = len(self.texts[request])
        return length - 2 if request in self.whole else length - 2 - self.depth


def step_lengths(accepted: Sequence[int], length: int, last: int) -> list[int]:
    """Tokens that each step emits, `accepted[k]` of them drafted if it starts at token k.

    Steps start at tokens 0 to `last`; none emits more than the `length` tokens of the text hold.
    """
    lengths = []
    position = 0
    while position <= last:
        lengths.append(min(accepted[position] + 1, length - 1 - position))
        position += lengths[-1]
    return lengths
