# SPDX-License-Identifier: Apache-2.0
"""The fastest step for the whole batch: how deep to draft, and which nodes are worth verifying.

A node is worth the chance that its path is accepted. Along a path that never rises, so the best N
nodes of all trees together are the N likeliest ones, and with every node go its ancestors. A second
is worth the tokens that steps brought in one of late: taking whatever brings more than its time is
worth gives the most tokens per second in the long run (Dinkelbach), more nodes in a step that
promises much than in one that does not. Source: Yggdrasil's latency-aware objective, here for a
batch of requests, and over steps.

On a host each level is asked for once the one above it has been read. A device is not waited for:
there the depth is chosen before drafting, by what trees of late held, and the nodes once all are on
the host, where vLLM's scheduler needs their tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from math import exp, log2
from typing import Any, ClassVar

import numpy as np
import torch

from vllm_eagle_pangu.core.costs import StepCosts, WholeStepCosts
from vllm_eagle_pangu.core.learnt import take, told
from vllm_eagle_pangu.core.looks import (
    FOLLOWED,
    GOES_ON,
    LOOK_AT_PLAIN,
    TREES,
    TRIAL,
    Looks,
    look_steps,
)
from vllm_eagle_pangu.core.ops import Ops
from vllm_eagle_pangu.core.policy import StepReport
from vllm_eagle_pangu.core.remembered import Remembered, bin_of
from vllm_eagle_pangu.core.request import RequestView
from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.core.speeds import ENOUGH_TREES, Account, Speeds
from vllm_eagle_pangu.core.tree import TreeBatch
from vllm_eagle_pangu.kernels.tree_prune import Belief

HOST = torch.device("cpu")
# Of what was seen of nodes before, how much each one leaves: some 500 count.
MEMORY = 0.998
# What was seen of them in another engine weighs no more than what so many nodes do that are as
# likely as not.
SEEN_BEFORE = 32
# Nodes are believed in apart by what their requests' temperatures are: 0, up to this, and above.
WARM = 0.7
# So often trees are remembered, and it is asked anew whether they pay. Once a batch stays about as
# it is, so many times more seldom: the reckoning takes as long as a tenth of a small model's step,
# and remembering a twentieth. What was reckoned for batches of other sizes is forgotten then.
REMEMBERED, REASSESSED, SELDOM, STAYS = 4, 8, 4, 64
# Of so many steps, as much more seldom, three have trees with all levels: as wide as may be, as
# wide as now, one wide.
LOOK_DEEPER, WIDEST, USUAL, NARROWEST = 32, 0, 8, 16
# A forward of more rows than `FEW` has a multiple of `MULTIPLE`: few numbers, as on a CPU the first
# matrix product of a number of rows takes several times as long as later ones.
FEW, MULTIPLE = 16, 8
# Of a rest's steps, all at first, one of so many is told, not a power of 2, as requests often are
# as long; and from so many at once is learnt: behind a forward even little work takes long.
TOLD, TOGETHER = 15, 16
# Of about one size are batches that are so near to one, in halvings: requests come and go, and what
# was decided of them is not decided again whenever one does.
NEAR = 0.75


@dataclass
class Prices:
    """What trees for a batch are to bring, `rate` tokens per second at a pace of 1. In tokens, what
    is worth the time of: a `row`, a `level`, `[n] float64` a forward by its `nodes`, and by
    requests the same with few numbers of rows."""

    rate: float = 0.0
    row: float = 0.0
    level: float = 0.0
    nodes: np.ndarray = field(default_factory=lambda: np.zeros(1))
    by_batch: dict[int, torch.Tensor] = field(default_factory=dict)


class AdaptiveShapes:
    """A `TreePolicy`: up to `largest`, as wide, as deep and as many nodes as pay, or no tree.

    `ops`: of the host, where trees are pruned. `costs` may be told what to expect before the first
    step. `on_host`: whether steps run there, where scores can be read while trees are drafted.
    Otherwise `sizes` are the numbers of rows that a forward is padded to.
    """

    LEARNT = ("speeds", "belief", "_size", "_plans", "_looks_of")
    ITEMS: ClassVar = {"_looks_of": (0, Looks())}

    def __init__(
        self, largest: TreeShape, ops: Ops, on_host: bool = True, sizes: Sequence[int] = ()
    ) -> None:
        self.largest = largest
        self.ops = ops
        self.on_host = on_host
        self.speeds = Speeds(largest, StepCosts() if on_host else WholeStepCosts(sizes))
        self.belief = Belief.empty(1 + _kind(1.0))
        # Width, and depth at most, of trees by now, of those being drafted, and of those before.
        self._size = self._size_now = self._size_before = largest.width, largest.depth
        # By bin, what they come to: a tree's worth, and its bin one level below.
        self._worths: list[float] = []
        self._bins_below: list[int] = []
        # By level: the bins of the trees being drafted, `[T]`.
        self._bins: list[list[int]] = []
        # Of the trees being drafted, and by how many there are, since all was reckoned anew.
        self._prices, self._prices_of = Prices(), dict[int, Prices]()
        # Trees of the step being planned, and of the one before; whether they have all levels.
        self._drafted, self._drafted_before, self._whole = 0, 0, True
        self._plans = 0
        # Plans since trees are drafted for so many requests.
        self._stayed = 0
        # Plans since the drafter last missed what a step committed, in how many of them somebody
        # was to have trees, and up to which plan it is to know what is committed.
        self._followed, self._drafting, self._wanted = FOLLOWED, 0, FOLLOWED
        # Steps of the rest; what they were, as far as nothing was learnt from them yet; whether
        # there can be any, and how many more come soon after others.
        self._resting = 0
        self._rested: list[StepReport] = []
        self._may_rest, self._soon = False, 0
        # By the power of 2 that the batch is about; of the one whose trees are being looked at.
        self._power = 0
        self._looks_of: dict[int, Looks] = {}
        self._look: Looks | None = None

    @property
    def costs(self) -> StepCosts:
        """What steps are believed to take."""
        return self.speeds.costs

    @property
    def trees(self) -> Remembered:
        """What trees of late held."""
        return self.speeds.trees

    def learnt(self) -> dict[str, Any]:
        """All that another engine of the same pair on the same machine may start from, as JSON
        holds it: see `resume`."""
        self._learn_of_rest()
        self.costs.solve()
        found: dict[str, Any] = told(self)
        return found

    def resume(self, learnt: dict[str, Any]) -> None:
        """Go on where another engine's policy was, with doubts of what steps take by now, and of
        the texts. Raises ValueError for what no such policy `learnt`; then nothing changed."""
        sizes = [[shape.width, shape.depth] for shape in self.shapes()]
        if (size := learnt.get("_size")) not in sizes:
            raise ValueError(f"width and depth {size} are not of trees up to {self.largest}")
        take(self, learnt)
        self.speeds.doubt()
        seen = self.belief.information
        seen *= (SEEN_BEFORE / 4 / seen[:, :1, :1].clamp(min=1e-9)).clamp(max=1.0)
        for looks in self._looks_of.values():
            # A rest that is tried is one piece.
            if looks.tries:
                looks.tried()

    def rests(self, batch: int, unasked: int = 0) -> int:
        """See `TreePolicy`: once trees have not paid for a while, till they are looked at again."""
        if self._may_rest:
            self._rest(self._looks_of[self._power], unasked)
        looks = self._looks(batch)
        self._may_rest = True
        tried = looks.tries and looks.plans >= looks.pause
        if tried or self._resting == TRIAL:
            # By now it is known what such steps take.
            self._learn_of_rest()
            if tried:
                looks.tried()
            self._reassess(batch, anew=False)
        # Whoever was drafted for of late may be again, in a batch of another size.
        wanted = looks.drafts or self._plans <= self._wanted
        if wanted or looks.plans >= looks.pause:
            return 0
        self._rest(looks, 1)
        self._followed = self._drafting = 0
        if self._resting <= TRIAL:
            return 1
        return min(TOLD, 1 + looks.pause - looks.plans)

    def _rest(self, looks: Looks, steps: int) -> None:
        """Another so many in which the drafter misses what is committed."""
        self._plans += steps
        looks.plans += steps
        self._resting += steps

    def plan(self, requests: Sequence[RequestView]) -> Sequence[TreeShape | None]:
        """See `TreePolicy`: trees for all, or none."""
        self._learn_of_rest()
        self._resting = 0
        batch = len(requests)
        self._plans += 1
        self._bins.clear()
        looks = self._looks(batch)
        if looks.begin() and not looks.pays:
            self.speeds.kept.forget_half()
        if looks.begin_at_plain():
            self.costs.look_at_plain(batch)
        at_plain = looks.at_plain
        looks.looking = self._goes_on(looks, batch)
        self._look = looks if looks.looking else None
        if looks.drafts:
            # Not for long where a batch only passed by.
            self._drafting = min(self._drafting + 1, FOLLOWED)
            self._wanted = self._plans + self._drafting
        self._drafted = 0
        self._followed += 1
        if looks.drafts and self._followed < FOLLOWED and not at_plain:
            # Trees of a head that knows the last few tokens alone would say little of it. The first
            # steps in which it follows are the look at plain ones.
            return [None] * batch
        looks.planned()
        self._stayed = 0 if looks.plans <= look_steps(batch) else self._stayed + 1
        anew = self._due(REASSESSED)
        prices = self._prices_of.get(batch)
        if anew or (looks.drafts and prices is None):
            self._reassess(batch, anew)
            if self._may_rest and looks.try_a_rest(batch, self._plans):
                self._want_no_more()
        elif prices:
            self._prices = prices
        self._choose_for_now(looks, batch)
        if at_plain or not looks.drafts:
            return [None] * batch
        self._drafted = batch
        looks.trees += batch
        return [self._shape(*self._size_now)] * batch

    def _due(self, every: int) -> bool:
        """Whether what is done every so many plans is; not with trees of another size."""
        return (self._plans + REMEMBERED) % self._seldom(every) == 0

    def _seldom(self, every: int) -> int:
        """Once a batch stays about as it is, so many times as many plans."""
        return every if self._stayed < STAYS else SELDOM * every

    def _goes_on(self, looks: Looks, batch: int) -> bool:
        """Whether trees are looked at; a look that ends is reckoned with."""
        if looks.plans < look_steps(batch):
            return True
        if not looks.looking:
            return False
        if looks.plans == look_steps(batch):
            self._reassess(batch, anew=True)
        if looks.near and looks.plans < look_steps(batch, GOES_ON):
            return True
        self._reassess(batch, anew=True)
        looks.end(self.costs.of_plain(batch))
        if not looks.pays:
            self._want_no_more()
        return False

    def _want_no_more(self) -> None:
        """Nobody wants the drafter to follow any longer."""
        self._wanted, self._drafting = self._plans - 1, 0

    def _choose_for_now(self, looks: Looks, batch: int) -> None:
        """The width and depth of the trees being drafted: those that pay, or now and then others,
        which tell what these hold, and what rows of a level take."""
        # On a device such trees alone tell what levels take.
        often = self._seldom(LOOK_DEEPER) if self.on_host else LOOK_DEEPER
        turn, at_all = self._plans % often, looks.at_all(batch)
        self._whole = at_all or turn in (WIDEST, USUAL, NARROWEST)
        (width, depth), largest, narrowest = self._size, self.largest.width, self.trees.widths[0]
        flat = turn == NARROWEST
        if at_all:
            flat = looks.plans > (LOOK_AT_PLAIN + look_steps(batch)) / 2
            further = narrowest if width == largest else width
            width = further if flat else largest
        else:
            width = {WIDEST: largest, NARROWEST: narrowest}.get(turn, width)
        if self._whole:
            # Where levels are not timed, trees without tell what they take.
            depth = 1 if flat and not self.on_host else self.largest.depth
        self._size_now = width, depth

    def shapes(self) -> Sequence[TreeShape]:
        """See `TreePolicy`."""
        depths = range(self.largest.depth, 0, -1)
        return [self._shape(*size) for size in product(reversed(self.trees.widths), depths)]

    def _shape(self, width: int, depth: int) -> TreeShape:
        capacity = TreeShape(width, depth, 1).capacity
        return TreeShape(width, depth, min(self.largest.nodes, capacity))

    def _looks(self, batch: int) -> Looks:
        """Of batches of about this size. Where trees do not pay for fewer requests, they are not
        looked at for more at first, as rows are then dearer."""
        if abs(log2(batch) - self._power) > NEAR or not self._looks_of:
            self._power = round(log2(batch))
        if self._power not in self._looks_of:
            fewer = max((each for each in self._looks_of if each < self._power), default=None)
            if fewer is not None and not self._looks_of[fewer].pays:
                first = Looks.later(batch, self._looks_of[fewer].near)
            else:
                # What trees of all widths and levels hold may be known of other batches.
                first = Looks(looks=1 if self.trees.known_whole < ENOUGH_TREES else 2)
            self._looks_of[self._power] = first
        return self._looks_of[self._power]

    def deepen(self, level: int, score: torch.Tensor) -> bool:
        """See `TreePolicy`: whether further levels bring more than their time is worth."""
        self.costs.drew(level)
        if not self.on_host:
            return True
        # Plain numbers: each call of numpy takes as long as ten requests.
        bins = [bin_of(sum(map(exp, row))) for row in score.tolist()]
        self._bins.append(bins)
        if self._whole:
            return True
        gain = 0.0
        for _ in range(level, self.largest.depth):
            gain += sum([self._worths[each] for each in bins]) - self._prices.level
            if gain > 0:
                return True
            bins = [self._bins_below[each] for each in bins]
        return False

    def keep(
        self, trees: Sequence[TreeBatch], requests: Sequence[Sequence[RequestView]], batch: int
    ) -> Sequence[TreeBatch]:
        """See `TreePolicy`: the nodes that pay, the likeliest first in each tree."""
        if trees and self._bins and trees[0].max_depth == self.largest.depth:
            # Nobody asked for a level below the last.
            self.costs.drew_last()
        cost = self._cost_by_nodes(batch)
        found = []
        pays = self._looks_of[self._power].pays
        # One batch of trees, as they were planned in one shape, unless the drafter cannot.
        for drafted, whose in zip(trees, requests, strict=True):
            tree = drafted.to(HOST)
            pruned, chance = self.ops.tree_prune(tree, _kinds(whose), self.belief, cost)
            often = pays and self.trees.known >= TREES
            if self._size_now == self._size and (not often or self._due(REMEMBERED)):
                self.trees.add(tree, chance.numpy(), self._bins, self._prices.row)
            if self._whole and self._size_now == (self.largest.width, self.largest.depth):
                began = self.costs.clock()
                self.trees.add_whole(tree, chance.numpy())
                # Other trees do without: that is not what their width takes.
                self.costs.aside += self.costs.clock() - began
            kept = TreeBatch.of(pruned, tree.max_depth)
            found.append(kept.to(drafted.tokens.device))
        return found

    def _cost_by_nodes(self, batch: int) -> torch.Tensor:
        """`[nodes + 1] float64`, in tokens, of a forward by its nodes; infinite where it would have
        one of too many numbers of rows."""
        prices = self._prices
        if batch not in prices.by_batch:
            rows = batch + np.arange(len(prices.nodes))
            odd = ~np.isin(rows, row_counts(rows[-1])) & self.on_host
            odd[[0, -1]] = False
            prices.by_batch[batch] = torch.from_numpy(np.where(odd, np.inf, prices.nodes))
        return prices.by_batch[batch]

    def line(self, request: RequestView) -> Sequence[float]:
        """See `TreePolicy`."""
        found: list[float] = self.belief.line[_kind(request.temperature)].tolist()
        return found

    def observe(self, report: StepReport) -> None:
        """See `TreePolicy`."""
        if self._followed:
            self._soon = TRIAL
            self._learn(report)
            return
        self._rested.append(report)
        if len(self._rested) == TOGETHER:
            self._learn_of_rest()

    def _learn_of_rest(self) -> None:
        for report in self._rested:
            self.costs.saw_missed(report, self._soon > 0)
            self._soon -= 1
            self.speeds.count(report.batch, report.rows - report.batch)
        self._rested.clear()

    def _learn(self, report: StepReport) -> None:
        drafted, before = self._drafted, self._drafted_before
        self._drafted, self._drafted_before = 0, drafted
        usual = self._size_now == self._size_before == self._size
        self._size_before, width = self._size_now, self._size_now[0]
        seconds = self.costs.saw(report, drafted, before, width)
        tree, paths = report.tree, report.paths
        accepted = 0
        if tree is not None and paths is not None:
            rows, length = paths.rows.to(HOST), paths.length.to(HOST)
            kinds = _kinds(report.requests)
            self.ops.tally_paths(tree.to(HOST), kinds, rows, length, self.belief, MEMORY)
            accepted = sum(length.tolist())
        emitted, prompts = report.batch + accepted, report.rows - report.batch - report.nodes
        self.speeds.count(emitted, prompts)
        if self._look is not None:
            self._look.lost += self._lost(report, emitted, prompts)
        # Steps with trees for most, as wide as hoped, are compared with what was hoped of them.
        rate = self._prices.rate
        if seconds and rate and usual and self.speeds.became(report.batch, emitted, rate * seconds):
            self._stayed = 0

    def _lost(self, report: StepReport, emitted: int, prompts: int) -> float:
        """Seconds that a step took beyond what plain steps take for its tokens, as far as known."""
        plain = self.costs.of_plain(report.batch)
        if not plain or self.costs.first_time:
            return 0.0
        took = sum(self.costs.believed(report))
        took -= prompts * self.costs.of_prompt_row(trees=False)
        return took - plain * emitted / report.batch

    def decided(self) -> dict[int, bool]:
        """Whether trees pay, by the numbers of requests, powers of 2, near which there were any."""
        return {2**power: looks.pays for power, looks in sorted(self._looks_of.items())}

    def account(self, batch: int) -> Account:
        """Of steps of so many requests, by all that was seen."""
        self._learn_of_rest()
        powers = sorted(self._looks_of, key=lambda power: abs(power - log2(batch)))
        pays = bool(powers) and self._looks_of[powers[0]].pays
        return self.speeds.account(batch, self._size[0], pays)

    def _reassess(self, batch: int, anew: bool) -> None:
        """What a second is worth, and whether trees pay; `anew`: the width, too."""
        speeds, costs = self.speeds, self.costs
        costs.solve()
        if anew:
            self._prices_of.clear()
            size = speeds.best_size(batch, self._size, all_levels=self.on_host)
            if size != self._size:
                self._size = size
                self.trees.become(*size)
        hoped = speeds.of_trees(batch, self._size[0])
        rate = speeds.beside_prompts(speeds.kept.share * hoped, trees=True)
        plain = speeds.beside_prompts(speeds.of_plain(batch), trees=False)
        worth = max(rate, plain)
        most = batch * self.largest.nodes
        nodes = worth * costs.of_forward(batch, np.arange(most + 1))
        level = worth * costs.of_level(batch * self._size[0])
        row = (nodes[-1] - nodes[0]) / most
        self._prices = Prices(hoped * costs.pace.now, row, level, nodes)
        self._prices_of[batch] = self._prices
        self._worths, self._bins_below = self.trees.below()
        looks = self._looks(batch)
        if hoped:
            looks.judge(rate, plain, costs.drifted(batch))
        elif looks.plans > 2 * look_steps(batch):
            # Steps that teach what trees take are rare.
            looks.pays = False


def row_counts(most: int) -> list[int]:
    """Numbers of rows, up to `most`, that a host's forwards with trees have."""
    return [*range(1, min(FEW, most) + 1), *range(FEW + MULTIPLE, most + 1, MULTIPLE)]


def _kind(temperature: float) -> int:
    """Of a request's trees, by how their tokens are drawn."""
    return (temperature > 0) + (temperature > WARM)


def _kinds(requests: Sequence[RequestView]) -> torch.Tensor:
    """`[B] int64`; not to be written to."""
    return _tensor(tuple([_kind(request.temperature) for request in requests]))


@lru_cache(maxsize=64)
def _tensor(numbers: tuple[int, ...]) -> torch.Tensor:
    """Nearly always the same few; making one takes as long as the choice of a tree's nodes."""
    return torch.tensor(numbers)
