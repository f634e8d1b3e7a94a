# SPDX-License-Identifier: Apache-2.0
"""Which tree to draft for each request of a step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from vllm_eagle_pangu.core.paths import AcceptedPaths
from vllm_eagle_pangu.core.request import RequestView
from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.core.tree import TreeBatch


@dataclass(frozen=True)
class StepReport:
    """What a step did: `rows` tokens of `batch` requests, T trees among them.

    Of the trees: `requests: [T]`; `shapes: [T]`, in which they were drafted; `tree`, what was
    verified of them, `nodes` in all; `paths`, what was accepted. None where there are none.
    `seconds` by stage: see `step.stages.Stages`. `late`: rows of it that the drafter is to read
    later, less those of steps before that it read now.
    """

    batch: int
    rows: int
    requests: Sequence[RequestView]
    shapes: Sequence[TreeShape]
    tree: TreeBatch | None
    paths: AcceptedPaths | None
    seconds: Mapping[str, float]
    nodes: int = 0
    late: int = 0


@dataclass(frozen=True)
class Unasked:
    """`steps` of a rest of which no policy was told, each of about `batch` requests, which
    `emitted` so many tokens, of `rows` in all. `timed` of them had just so many requests, read no
    prompt, and followed upon another: from its forward to their own these took so many `seconds`
    together."""

    batch: int = 0
    steps: int = 0
    emitted: int = 0
    rows: int = 0
    timed: int = 0
    seconds: float = 0.0


NONE = Unasked()


class TreePolicy(Protocol):
    """Chooses shapes, none larger than the engine's configured one."""

    def rests(self, batch: int, unasked: Unasked = NONE) -> int:
        """Asked before a step of so many requests that verifies no tree: for how many steps of
        about so many, this one among them, nobody will have one. The drafter need not follow then,
        and no tree is planned. `observe` is told of this step; the others may pass with no word,
        and are `unasked` when it is asked again. Unless overridden, 0.
        """
        return 0

    def puts_off(self, requests: Sequence[RequestView], new: int, waiting: int) -> bool:
        """Asked behind each step that the drafter follows, before its trees are planned, of these
        requests: `new` of them began in it, `waiting` more need the next one to read their prompts.
        Whether that comes at once: then no tree is planned, and the drafter may read later what was
        committed. Unless overridden, no.
        """
        return False

    def plan(self, requests: Sequence[RequestView]) -> Sequence[TreeShape | None]:
        """A shape for each of the requests that can be drafted for; None for no tree."""
        ...

    def shapes(self) -> Sequence[TreeShape]:
        """All that it may plan, the largest first: start-up drafts and verifies each of them."""
        ...

    def deepen(self, level: int, score: torch.Tensor) -> bool:
        """Whether to draft below `level`, 1 for the roots' children, of trees of one shape: yes.

        `score: [B, W] float32`: cumulative log-probabilities of the nodes that would have children.
        On a device it is asked once a tree is there, whole: it can only count.
        """
        return True

    def keep(
        self, trees: Sequence[TreeBatch], requests: Sequence[Sequence[RequestView]], batch: int
    ) -> Sequence[TreeBatch]:
        """What the next step verifies of drafted trees, beside `batch` roots: all of them.

        `requests`: whose they are, `[B]` of each batch of trees.
        """
        return trees

    def observe(self, report: StepReport) -> None:
        """Told at the end of every step."""
        return

    def line(self, request: RequestView) -> Sequence[float] | None:
        """Of `kernels.tree_prune.Belief`, by which its nodes are kept; None where all are."""
        return None


@dataclass(frozen=True)
class FixedShape(TreePolicy):
    """The same shape for every request of every step, or no tree."""

    tree: TreeShape | None

    def plan(self, requests: Sequence[RequestView]) -> Sequence[TreeShape | None]:
        """See `TreePolicy`."""
        return [self.tree] * len(requests)

    def shapes(self) -> Sequence[TreeShape]:
        """See `TreePolicy`."""
        return [] if self.tree is None else [self.tree]
