# SPDX-License-Identifier: Apache-2.0
"""A step's time for every shape, from the probes."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.tuning.probing import Probes


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
        while len(pools) > 1 and fmean(pools[-2]) > fmean(pools[-1]):
            falling = pools.pop()
            pools[-1] += falling
    flat = [fmean(pool) for pool in pools for _ in pool]
    return dict(zip(sorted(values), flat, strict=True))
