# SPDX-License-Identifier: Apache-2.0
"""A step's time for every shape, from an engine that drafts another one at every step.

A step's time falls into the drafter's, which depends on W and D, and the rest, which depends on M:
scheduling, the target's forward over M+1 rows, sampling, walk and commit. Shapes take turns step by
step, so that what else the machine does falls on all of them alike.
"""

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np

from vllm_eagle_pangu.core.policy import TreePolicy
from vllm_eagle_pangu.core.request import RequestView
from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.measure.engine import Engine, now_ms
from vllm_eagle_pangu.measure.prompts import pieces
from vllm_eagle_pangu.step.grow import Drafted
from vllm_eagle_pangu.step.place import Placed
from vllm_eagle_pangu.step.stages import Observer, Stage
from vllm_eagle_pangu.tuning.settings import Prompt

SAMPLES = 24
SECONDS = 30.0
# A budget seen less often is not judged.
MIN_SAMPLES = 3
DEPTHS = (2, 5, 10)

Cells = Sequence[int]


@dataclass
class Probes:
    """Milliseconds of steps with a full batch: of the drafter by (W, D), of the rest by M."""

    batch_size: int
    draft_ms: dict[tuple[int, int], list[float]] = field(default_factory=dict)
    verify_ms: dict[int, list[float]] = field(default_factory=dict)

    @classmethod
    def empty(
        cls, batch_size: int, widths: Sequence[int], depths: Sequence[int], budgets: Sequence[int]
    ) -> "Probes":
        """Nothing measured yet."""
        growths = {(width, depth): list[float]() for width in widths for depth in depths}
        return cls(batch_size, growths, {nodes: [] for nodes in budgets})

    def next_shape(self) -> TreeShape:
        """The least measured (W, D), with the least measured M that it can hold."""
        width, depth = min(self.draft_ms, key=lambda key: len(self.draft_ms[key]))
        capacity = width + (depth - 1) * width * width
        fitting = [nodes for nodes in self.verify_ms if nodes <= capacity]
        nodes = min(fitting, key=lambda nodes: len(self.verify_ms[nodes]))
        return TreeShape(width, depth, nodes)

    def enough(self) -> bool:
        cells = [*self.draft_ms.values(), *self.verify_ms.values()]
        return all(len(times) >= SAMPLES for times in cells)

    def verify(self) -> dict[int, float]:
        """Median milliseconds by M, of those measured often enough."""
        return _medians(self.verify_ms)

    def draft(self) -> dict[tuple[int, int], float]:
        """Median milliseconds by (W, D), of those measured often enough."""
        return _medians(self.draft_ms)


def _medians(cells: dict[Any, list[float]]) -> dict[Any, float]:
    return {
        key: statistics.median(times) for key, times in cells.items() if len(times) >= MIN_SAMPLES
    }


def probe(
    engine: Engine,
    prompts: Sequence[Prompt],
    empty: Probes,
    tokens: int,
    temperature: float,
) -> Probes:
    """Fill `empty` while decoding the prompts over and over; stops after `SECONDS`."""
    batch = empty.batch_size
    deadline = time.monotonic() + SECONDS
    params = {"temperature": temperature, "max_tokens": tokens, "ignore_eos": True}
    # As many calls as it takes: every step measures one cell, prefills and the batch's end none.
    chunks = pieces(prompts, 2 * batch, len(prompts))
    engine.generate(chunks[0][:batch], **{**params, "max_tokens": 8})
    probed = _Probe(empty)
    with engine.watched(probed, policy=probed):
        for turn in count():
            engine.generate(chunks[turn % len(chunks)], **params)
            if empty.enough() or time.monotonic() > deadline:
                return empty
    raise AssertionError("unreachable")


class _Probe(Observer, TreePolicy):
    """Has every step draft `probes.next_shape()`, and keeps the times of full batches.

    A step's time from the end of one drafting to the beginning of the next one is the verifier's.
    """

    def __init__(self, probes: Probes) -> None:
        self.probes = probes
        self.shape: TreeShape | None = None
        self.begin = self.end = 0.0
        self.is_full = False
        self.drafted = 0

    def plan(self, requests: Sequence[RequestView]) -> Sequence[TreeShape | None]:
        """See `TreePolicy`."""
        return [self.shape] * len(requests)

    def found(self, result: Any) -> None:
        """See `Observer`."""
        if isinstance(result, Placed):
            self.is_full = _all_verified(result, self.shape, self.probes.batch_size)
        elif isinstance(result, Drafted):
            self.drafted = sum(len(trees.requests) for trees in result.trees)

    def entered(self, stage: Stage) -> None:
        """See `Observer`."""
        shape, probes = self.shape, self.probes
        if stage == "extend":
            self.begin, self.drafted = now_ms(), 0
            if self.is_full and shape is not None:
                probes.verify_ms[shape.nodes].append(self.begin - self.end)
            self.shape = probes.next_shape()
        elif stage == "other" and self.begin > self.end:
            self.end = now_ms()
            if self.is_full and shape is not None and self.drafted == probes.batch_size:
                probes.draft_ms[shape.width, shape.depth].append(self.end - self.begin)


def _all_verified(placed: Placed, shape: TreeShape | None, batch_size: int) -> bool:
    """Whether this step verifies a whole tree of `shape` for each of `batch_size` requests."""
    if placed.trees is None or shape is None or not placed.covers_batch:
        return False
    return [tree.rows for tree in placed.trees.scheduled] == [shape.rows] * batch_size


@dataclass(frozen=True)
class StepCost:
    """T(W, D, M) = verify(M) + first(W) + (D-1) level(W) - (D_max - D) row.

    Verifying is measured for each M, and made to never fall with M; drafting for some depths: a
    level more is one pass more. The probing engine reads D_max+1 accepted rows after every step,
    an engine of depth D only D+1: `row_ms` is what a row more adds to a pass.
    """

    batch_size: int
    max_depth: int
    verify_ms: dict[int, float]
    # By width: of the pass over the accepted tokens and the first level, and of a further level.
    first_ms: dict[int, float]
    level_ms: dict[int, float]
    row_ms: float

    @classmethod
    def fitted(cls, probes: Probes, max_depth: int) -> "StepCost":
        """Lines through the drafter's medians, width by width."""
        draft = probes.draft()
        first, level = {}, {}
        for width in sorted({width for width, _ in draft}):
            depths = sorted(depth for w, depth in draft if w == width)
            times = [draft[width, depth] for depth in depths]
            if len(depths) > 1:
                slope, start = np.polyfit(np.subtract(depths, 1), times, 1)
                first[width], level[width] = float(start), max(0.0, float(slope))
        row = 0.0
        if len(level) > 1:
            row = max(0.0, float(np.polyfit(list(level), list(level.values()), 1)[0]))
        return cls(probes.batch_size, max_depth, never_falling(probes.verify()), first, level, row)

    def knows(self, shape: TreeShape) -> bool:
        """Whether the width and the budget were measured."""
        return shape.nodes in self.verify_ms and shape.width in self.first_ms

    def draft(self, shape: TreeShape) -> float:
        """Milliseconds of the drafter."""
        passes = self.first_ms[shape.width] + (shape.depth - 1) * self.level_ms[shape.width]
        return max(0.0, passes - (self.max_depth - shape.depth) * self.row_ms)

    def step(self, shape: TreeShape) -> float:
        """Milliseconds of a step."""
        return self.verify_ms[shape.nodes] + self.draft(shape)


def never_falling(values: Mapping[int, float]) -> dict[int, float]:
    """The closest values, in squares, of which none is below that of a smaller key.

    Neighbours that fall are replaced by their mean (pool adjacent violators): without it, the
    fastest of hundreds of shapes is one whose budget was measured too low by chance.
    """
    pools: list[list[float]] = []
    for key in sorted(values):
        pools.append([values[key]])
        while len(pools) > 1 and statistics.fmean(pools[-2]) > statistics.fmean(pools[-1]):
            falling = pools.pop()
            pools[-1] += falling
    flat = [statistics.fmean(pool) for pool in pools for _ in pool]
    return dict(zip(sorted(values), flat, strict=True))
