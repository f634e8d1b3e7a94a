# SPDX-License-Identifier: Apache-2.0
"""τ of every shape from one recording: trees that hold every candidate, at every token of a text.

The recording is plain decoding in which trees are grown at every token, kept for study, and never
verified. The drafter is asked once for every width, for a tree that holds all its candidates; the
scheduler is given none of them, so the next step decodes one token and the trees stand at every
position.

The tree of width W, depth D and budget M is what `tree_build` keeps of the growth of width W: of
its first D levels the M best candidates. So one growth per width and position says what any D and
M would have had accepted there, and a walk from step to step gives τ as that shape would decode.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.core.tree import TreeBatch
from vllm_eagle_pangu.measure.engine import Engine
from vllm_eagle_pangu.step.accept import Accepted
from vllm_eagle_pangu.step.drafter import Drafter
from vllm_eagle_pangu.step.grow import Deepen, Drafted
from vllm_eagle_pangu.step.head import TargetStates
from vllm_eagle_pangu.tuning.settings import Prompt

# A budget that no tree has: the node was not drafted.
NEVER = np.iinfo(np.int32).max
# Requests at a time: neither time nor accuracy depends on the batch sizes that are tuned for.
BATCH_SIZE = 16
SECONDS = 60.0


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


def record(
    engine: Engine,
    prompts: Sequence[Prompt],
    widths: Sequence[int],
    depth: int,
    tokens: int,
    temperature: float,
) -> Recording:
    """Decode the prompts in batches, as far as steps among `tokens` tokens may look ahead.

    No new batch after `SECONDS`.
    `engine` drafts with this plugin, at least `depth` deep and as wide as the widest of `widths`.
    """
    recording = Recording(depth)
    deadline = time.monotonic() + SECONDS
    length = tokens + depth
    # Nothing is drafted behind a request's last two tokens.
    asked = length + 2
    for start in range(0, len(prompts), BATCH_SIZE):
        drafter = GrowOnly(engine.runner.step.drafter, widths, depth)
        with engine.watched(drafter=drafter):
            engine.generate(
                prompts[start : start + BATCH_SIZE], temperature=temperature, max_tokens=asked
            )
        for request, text in drafter.texts.items():
            # vLLM's ids begin anew with every call in some versions.
            key = f"{start}/{request}"
            recording.texts[key] = text
            if len(text) < length:
                recording.whole.add(key)
            for width in widths:
                needed = [
                    growth.needed(text[k + 1 :], depth)
                    for k, growth in enumerate(drafter.growths[width][request])
                ]
                recording.needed.setdefault(width, {})[key] = np.stack(needed)
        if time.monotonic() > deadline:
            break
    return recording


class GrowOnly(Drafter[Any]):
    """A `Drafter`: grows a tree of all candidates for every width, and hands out none.

    `growths`: by width and request; `texts`: by request, the roots, which are the emitted tokens.
    """

    def __init__(self, drafter: Drafter, widths: Sequence[int], depth: int) -> None:
        self.drafter = drafter
        self.shapes = [TreeShape(w, depth, w + (depth - 1) * w * w) for w in widths]
        self.texts: dict[str, list[int]] = {}
        self.growths: dict[int, dict[str, list[Growth]]] = {width: {} for width in widths}
        self._ids: list[str] = []

    def requests(self, accepted: Accepted) -> Sequence[int]:
        """See `Drafter`."""
        return self.drafter.requests(accepted)

    def extend(
        self,
        accepted: Accepted,
        target: TargetStates,
        requests: Sequence[int],
    ) -> Any:
        """See `Drafter`."""
        self._ids = [accepted.placed.view.requests[request].id for request in requests]
        return self.drafter.extend(accepted, target, requests)

    def grow(self, state: Any, plan: Sequence[TreeShape], deepen: Deepen) -> Drafted:
        """See `Drafter`."""
        ids = self._ids
        for shape in self.shapes:
            (trees,) = self.drafter.grow(state, [shape] * len(plan), deepen).trees
            grown = Growth.of(trees.tree)
            for request, growth in zip(ids, grown, strict=True):
                self.growths[shape.width].setdefault(request, []).append(growth)
        for request, growth in zip(ids, grown, strict=True):
            self.texts.setdefault(request, []).append(int(growth.tokens[0]))
        return Drafted()
