# SPDX-License-Identifier: Apache-2.0
"""How wide trees are drafted, and how deep at most."""

from itertools import product
from typing import Any

from vllm_eagle_pangu.core.looks import LOOK_AT_PLAIN, Looks, look_steps
from vllm_eagle_pangu.core.shape import TreeShape

# Of so many steps, as much more seldom once a batch stays about as it is, three have trees with all
# levels: as wide as may be, as wide as now, one wide.
LOOK_DEEPER, WIDEST, USUAL, NARROWEST = 32, 0, 8, 16


class TreeSizes:
    """Width and depth: those that pay, `best`, or now and then others, which tell what these hold,
    and what rows of a level take.

    `widths`: that there are, the narrowest first. `levels_timed`: whether it is seen how long a
    level takes.
    """

    LEARNT = ("best",)

    def __init__(self, largest: TreeShape, widths: list[int], levels_timed: bool) -> None:
        self.largest, self._widths, self._levels_timed = largest, widths, levels_timed
        # By now, of the trees being drafted, and of those before.
        self.best = self.now = self._before = largest.width, largest.depth
        # Whether the trees being drafted have all levels.
        self.whole = True

    def choose(self, turn: int, looks: Looks, batch: int) -> None:
        """Of the trees to draft next, in such a `turn` of `LOOK_DEEPER`, or of a look."""
        at_all = looks.at_all(batch)
        self.whole = at_all or turn in (WIDEST, USUAL, NARROWEST)
        (width, depth), largest, narrowest = self.best, self.largest.width, self._widths[0]
        flat = turn == NARROWEST
        if at_all:
            flat = looks.plans > (LOOK_AT_PLAIN + look_steps(batch)) / 2
            further = narrowest if width == largest else width
            width = further if flat else largest
        else:
            width = {WIDEST: largest, NARROWEST: narrowest}.get(turn, width)
        if self.whole:
            # Where levels are not timed, trees without tell what they take.
            depth = 1 if flat and not self._levels_timed else self.largest.depth
        self.now = width, depth

    @property
    def shape(self) -> TreeShape:
        """Of the trees being drafted."""
        return self._shape(*self.now)

    def stayed(self) -> bool:
        """Asked once of each step: whether trees of this one and of the one before are the best."""
        stayed = self.now == self._before == self.best
        self._before = self.now
        return stayed

    def shapes(self) -> list[TreeShape]:
        """All that there are, the largest first."""
        depths = range(self.largest.depth, 0, -1)
        return [self._shape(*size) for size in product(reversed(self._widths), depths)]

    def has(self, told: Any) -> bool:
        """Whether `told` is what one of these sizes told that it learnt."""
        best = told.get("best") if isinstance(told, dict) else None
        return best in [[shape.width, shape.depth] for shape in self.shapes()]

    def _shape(self, width: int, depth: int) -> TreeShape:
        capacity = TreeShape(width, depth, 1).capacity
        return TreeShape(width, depth, min(self.largest.nodes, capacity))
