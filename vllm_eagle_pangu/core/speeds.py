# SPDX-License-Identifier: Apache-2.0
"""What a batch's steps bring in a second, with trees and without, by all that was seen of them."""

from dataclasses import dataclass

import numpy as np

from vllm_eagle_pangu.core.costs import StepCosts
from vllm_eagle_pangu.core.kept import Kept
from vllm_eagle_pangu.core.remembered import CHANCES, Remembered
from vllm_eagle_pangu.core.shape import TreeShape

# What a step weighs in how much of all tokens prompts are, which come one by one.
OF_LATE = 1 / 256
# From so many trees on, and so many steps with trees, something is known of them.
ENOUGH_TREES, ENOUGH_STEPS = 16, 4
# Another width, or depth, is chosen if it is so much faster.
FASTER = 1.02


@dataclass(frozen=True)
class Account:
    """What is believed of a batch's steps.

    Whether trees pay, beside as much of prompts as of late. Of steps that read no prompts, tokens
    per second without and with them, 0 where unknown; seconds of a step without trees, and of one
    with them: of the target's forward but for its nodes, a row more, a level below the first, and
    all else.
    """

    pays: bool
    plain_per_s: float
    trees_per_s: float
    plain_s: float
    forward_s: float
    row_s: float
    level_s: float
    rest_s: float


class Speeds:
    """Tokens per second of steps with trees up to `largest`, and without.

    `costs`: what steps take. `trees`: what trees of late held. `kept`: of what steps with trees for
    most were to emit, what they do.
    """

    LEARNT = ("costs", "trees", "kept", "_tokens", "_prompts")

    def __init__(self, largest: TreeShape, costs: StepCosts) -> None:
        self.costs, self.trees, self.kept = costs, Remembered(largest), Kept()
        self._nodes = max(largest.nodes, 2)
        # Tokens that steps emitted of late, and those of prompts that they read.
        self._tokens = self._prompts = 0.0

    def doubt(self) -> None:
        """It was learnt in another engine: of other texts, and on a machine that did other work."""
        self.costs.doubt()
        self.trees.doubt()

    def count(self, emitted: int, prompts: int, steps: int = 1) -> None:
        """So many steps emitted so many tokens, and read so many of prompts."""
        weight = 1 - (1 - OF_LATE) ** steps
        self._tokens += weight * (emitted / steps - self._tokens)
        self._prompts += weight * (prompts / steps - self._prompts)

    def became(self, trees: int, emitted: float, hoped: float) -> bool:
        """Whether a step with so many trees, which emitted so much of what was hoped, says that the
        head or its texts became others."""
        others = self.kept.saw(trees, emitted, hoped)
        if others:
            self.trees.doubt()
        return others

    def of_plain(self, batch: int) -> float:
        """Without trees; 0 where no such step was seen."""
        seconds = self.costs.of_plain(batch)
        return batch / seconds if seconds else 0.0

    def of_trees(self, batch: int, width: int) -> float:
        """With trees so wide for all, which are worth what they were lately, if all comes that is
        hoped for; 0 before enough of them are known, and what steps with them take."""
        if self.trees.known < ENOUGH_TREES or self.costs.known < ENOUGH_STEPS:
            return 0.0
        of_now = self.trees.nodes, self.trees.levels, width
        return float(self._by_depth(batch, *of_now).max())

    def with_trees(self, batch: int, width: int) -> float:
        """As `of_trees`, if as much of it comes as lately did."""
        return self.kept.share * self.of_trees(batch, width)

    def beside_prompts(self, rate: float, trees: bool) -> float:
        """Where steps bring so many, and read as much of prompts as of late."""
        if not rate or not self._tokens:
            return rate
        prompts = self._prompts / self._tokens
        return 1 / (1 / rate + prompts * self.costs.of_prompt_row(trees))

    def best_size(self, batch: int, now: tuple[int, int], all_levels: bool) -> tuple[int, int]:
        """The width, and the depth, that promise the most, of what the widest trees held: `now` if
        no other is clearly faster. `all_levels`: how deep trees are is seen while they are drafted.
        """
        trees = self.trees
        if trees.known_whole < ENOUGH_TREES or self.costs.known < ENOUGH_STEPS:
            return now
        levels = np.ones(len(trees.levels))
        each = zip(trees.held, trees.widths, strict=True)
        rates = np.array([self._by_depth(batch, held, levels, width) for held, width in each])
        if all_levels:
            rates[:, -1] = rates.max(axis=1)
            rates[:, :-1] = 0.0
        place, below = np.unravel_index(rates.argmax(), rates.shape)
        width, depth = now
        if rates[place, below] > FASTER * rates[trees.widths.index(width), depth - 1]:
            return trees.widths[int(place)], int(below) + 1
        return now

    def account(self, batch: int, width: int, pays: bool) -> Account:
        """Of steps of so many requests, whose trees are so wide."""
        costs = self.costs
        costs.solve()
        # From a node for each request to as many as may be.
        nodes = batch * np.array([1, self._nodes])
        few, many = costs.of_forward(batch, nodes).tolist()
        row = (many - few) / (nodes[1] - nodes[0])
        return Account(
            pays=pays,
            plain_per_s=self.of_plain(batch),
            trees_per_s=self.with_trees(batch, width),
            plain_s=costs.of_plain(batch),
            forward_s=few - row * batch,
            row_s=row,
            level_s=costs.of_level(batch * width),
            rest_s=costs.of_rest(batch, width),
        )

    def _by_depth(
        self, batch: int, nodes: np.ndarray, levels: np.ndarray, width: int
    ) -> np.ndarray:
        """`[D]`, cut below each level, where a request's trees have so many `nodes: [D, bins]` and
        `levels: [D]`; 0 before it is known what steps take."""
        # `[D, 1 + bins]`: of trees cut below a level, and the nodes below a chance left out.
        nodes = np.pad(batch * nodes.cumsum(axis=0), ((0, 0), (1, 0)))
        emitted = batch + (nodes * np.append(0.0, CHANCES)).cumsum(axis=1)
        drafted = levels.cumsum()[:, None]
        seconds = self.costs.of_trees(batch, drafted, nodes.cumsum(axis=1), width)
        rates: np.ndarray = (emitted / seconds).max(axis=1) if seconds[0, 0] > 0 else 0 * levels
        return rates
