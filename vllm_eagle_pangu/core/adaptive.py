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
from functools import lru_cache
from math import exp
from typing import Any

import torch

from vllm_eagle_pangu.core.costs import StepCosts
from vllm_eagle_pangu.core.following import Following
from vllm_eagle_pangu.core.learnt import take, told
from vllm_eagle_pangu.core.looks import (
    GOES_ON,
    TREES,
    Looks,
    LooksBySize,
    look_steps,
)
from vllm_eagle_pangu.core.ops import Ops
from vllm_eagle_pangu.core.policy import NONE, StepReport, Unasked
from vllm_eagle_pangu.core.prices import Prices
from vllm_eagle_pangu.core.remembered import Remembered, bin_of
from vllm_eagle_pangu.core.request import RequestView
from vllm_eagle_pangu.core.rest import Rest
from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.core.speeds import ENOUGH_TREES, Account, Speeds
from vllm_eagle_pangu.core.tree import TreeBatch
from vllm_eagle_pangu.core.tree_sizes import LOOK_DEEPER, TreeSizes
from vllm_eagle_pangu.core.whole_step_costs import WholeStepCosts
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
# it is, so many times more seldom, as all levels are drafted: the reckoning takes as long as a
# tenth of a small model's step, and remembering a twentieth. What was reckoned for batches of other
# sizes is forgotten then.
REMEMBERED, REASSESSED, SELDOM, STAYS = 4, 8, 8, 64


class AdaptiveShapes:
    """A `TreePolicy`: up to `largest`, as wide, as deep and as many nodes as pay, or no tree.

    `ops`: of the host, where trees are pruned. `costs` may be told what to expect before the first
    step. `on_host`: whether steps run there, where scores can be read while trees are drafted.
    Otherwise `sizes` are the numbers of rows that a forward is padded to.
    """

    LEARNT = ("speeds", "belief", "sizes", "looks", "_plans")

    def __init__(
        self, largest: TreeShape, ops: Ops, on_host: bool = True, sizes: Sequence[int] = ()
    ) -> None:
        self.largest = largest
        self.ops = ops
        self.on_host = on_host
        self.speeds = Speeds(largest, StepCosts() if on_host else WholeStepCosts(sizes))
        self.belief = Belief.empty(1 + _kind(1.0))
        self.sizes = TreeSizes(largest, self.trees.widths, levels_timed=on_host)
        self.looks = LooksBySize()
        self.rest = Rest(self.speeds)
        # By bin, what they come to: a tree's worth, and its bin one level below.
        self._worths: list[float] = []
        self._bins_below: list[int] = []
        # By level: the bins of the trees being drafted, `[T]`.
        self._bins: list[list[int]] = []
        # Of the trees being drafted, and by how many there are, since all was reckoned anew.
        self._prices, self._prices_of = Prices(), dict[int, Prices]()
        # By the number of requests since then, what trees for all of them are to bring: tokens per
        # second at a pace of 1.
        self._hopes = dict[int, float]()
        # Trees of the step being planned, and of the one before.
        self._drafted, self._drafted_before = 0, 0
        self._plans = 0
        # Plans since trees are drafted for so many requests.
        self._stayed = 0
        self._following = Following()
        # Whether there can be a rest, and the looks that go on.
        self._may_rest = False
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
        self.rest.learn()
        self.costs.solve()
        found: dict[str, Any] = told(self)
        return found

    def resume(self, learnt: dict[str, Any]) -> None:
        """Go on where another engine's policy was, with doubts of what steps take by now, and of
        the texts. Raises ValueError for what no such policy `learnt`; then nothing changed."""
        if not self.sizes.has(size := learnt.get("sizes")):
            raise ValueError(f"width and depth {size} are not of trees up to {self.largest}")
        take(self, learnt)
        self.speeds.doubt()
        seen = self.belief.information
        seen *= (SEEN_BEFORE / 4 / seen[:, :1, :1].clamp(min=1e-9)).clamp(max=1.0)
        for looks in self.looks.by_power.values():
            # A rest that is tried is one piece.
            if looks.tries:
                looks.tried()

    def rests(self, batch: int, unasked: Unasked = NONE) -> int:
        """See `TreePolicy`: once trees have not paid for a while, till they are looked at again."""
        if unasked.steps:
            self._plans += unasked.steps
            self.looks.last.plans += unasked.steps
            self.rest.passed(unasked)
        looks = self._looks(batch)
        self._may_rest = True
        tried = looks.tries and looks.plans >= looks.pause
        if tried or self.rest.lasts():
            self.rest.learn()
            if tried:
                looks.tried()
            self._reassess(batch, anew=False)
        wanted = looks.drafts or self._following.is_wanted(self._plans)
        if wanted or looks.plans >= looks.pause:
            return 0
        self._plans += 1
        looks.plans += 1
        self.rest.steps += 1
        self._following.misses()
        return min(self.rest.stretch(), 1 + looks.pause - looks.plans)

    def puts_off(self, requests: Sequence[RequestView], new: int, waiting: int) -> bool:
        """See `TreePolicy`: where many come together, for a few steps."""
        # On a device drafts do not come behind what clients get.
        if not (self.on_host and self._following.gives_way(len(requests), new, waiting)):
            return False
        self._follow(requests)
        # What it takes is no look's.
        self._look = None
        return True

    def plan(self, requests: Sequence[RequestView]) -> Sequence[TreeShape | None]:
        """See `TreePolicy`: trees for all, or none."""
        self._follow(requests)
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
            self._following.want(self._plans)
        self._drafted = 0
        if looks.drafts and self._following.catches_up(requests) and not at_plain:
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
                self._following.want_no_more(self._plans)
        elif prices:
            self._prices = prices
        # On a device trees with all levels alone tell what levels take.
        often = self._seldom(LOOK_DEEPER) if self.on_host else LOOK_DEEPER
        self.sizes.choose(self._plans % often, looks, batch)
        if at_plain or not looks.drafts:
            return [None] * batch
        self._drafted = batch
        looks.trees += batch
        return [self.sizes.shape] * batch

    def _follow(self, requests: Sequence[RequestView]) -> None:
        """The rest is over: the drafter takes in what this step commits."""
        self.rest.end()
        self._following.follows(requests)

    def _due(self, every: int) -> bool:
        """Whether what is done every so many plans is; not with trees of another size."""
        return (self._plans + REMEMBERED) % self._seldom(every) == 0

    def _seldom(self, every: int) -> int:
        """Once a batch stays about as it is, so many times as many plans."""
        return every if self._stayed < STAYS else SELDOM * every

    def _goes_on(self, looks: Looks, batch: int) -> bool:
        """Whether trees are looked at; a look that ends is reckoned with."""
        hopeless = looks.give_up()
        # On a device only the look's other trees tell what levels take, and rows.
        may_end = looks.looking and self.on_host
        if may_end and looks.is_dear(batch, self.costs.of_plain(batch)) and self._hope(batch):
            # As if it had been as long as it was to be.
            looks.plans = max(looks.plans, look_steps(batch))
        if looks.plans < look_steps(batch) and not hopeless:
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
            self._following.want_no_more(self._plans)
        return False

    def shapes(self) -> Sequence[TreeShape]:
        """See `TreePolicy`."""
        return self.sizes.shapes()

    def _looks(self, batch: int) -> Looks:
        return self.looks.of(batch, known_at_all=self.trees.known_whole >= ENOUGH_TREES)

    def deepen(self, level: int, score: torch.Tensor) -> bool:
        """See `TreePolicy`: whether further levels bring more than their time is worth."""
        self.costs.drew(level)
        if not self.on_host:
            return True
        # Plain numbers: each call of numpy takes as long as ten requests.
        bins = [bin_of(sum(map(exp, row))) for row in score.tolist()]
        self._bins.append(bins)
        if self.sizes.whole:
            # Below nodes without a chance there are none with one.
            return min(bins) < bin_of(0.0)
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
        cost, sizes = self._prices.by_nodes(batch), self.sizes
        found = []
        pays = self.looks.last.pays
        # One batch of trees, as they were planned in one shape, unless the drafter cannot.
        for drafted, whose in zip(trees, requests, strict=True):
            tree = drafted.to(HOST)
            if self._look is not None:
                # As many as trees are verified at any price: what is believed may be wrong.
                cost = cost.clamp(min=float(cost[tree.batch_size :].min()))
            pruned, chance = self.ops.tree_prune(tree, _kinds(whose), self.belief, cost)
            often = pays and self.trees.known >= TREES
            if sizes.now == sizes.best and (not often or self._due(REMEMBERED)):
                self.trees.add(tree, chance.numpy(), self._bins, self._prices.nodes)
            if sizes.whole and sizes.now == (self.largest.width, self.largest.depth):
                began = self.costs.clock()
                self.trees.add_whole(tree, chance.numpy())
                # Other trees do without: that is not what their width takes.
                self.costs.aside += self.costs.clock() - began
            kept = TreeBatch.of(pruned, tree.max_depth)
            found.append(kept.to(drafted.tokens.device))
        return found

    def line(self, request: RequestView) -> Sequence[float]:
        """See `TreePolicy`."""
        found: list[float] = self.belief.line[_kind(request.temperature)].tolist()
        return found

    def observe(self, report: StepReport) -> None:
        """See `TreePolicy`."""
        if self._following.steps:
            self._learn(report)
        else:
            self.rest.saw(report)

    def _learn(self, report: StepReport) -> None:
        drafted, before = self._drafted, self._drafted_before
        self._drafted, self._drafted_before = 0, drafted
        width, as_wide = self.sizes.now[0], self.sizes.stayed()
        seconds = self.costs.saw(report, drafted, before, width)
        tree, paths = report.tree, report.paths
        accepted = 0
        if tree is not None and paths is not None:
            tree = tree.to(HOST)
            rows, length = paths.rows.to(HOST), paths.length.to(HOST)
            kinds = _kinds(report.requests)
            self.ops.tally_paths(tree, kinds, rows, length, self.belief, MEMORY)
            # Who has come to its last token has no use for more.
            left = [request.may_emit - 1 for request in report.requests]
            accepted = sum(map(min, length.tolist(), left))
            if self._look is not None:
                missed = tree.valid[:, 1:].any(dim=1) & (length == 0)
                self._look.misses += int(missed.sum())
        emitted, prompts = report.batch + accepted, report.rows - report.batch - report.nodes
        self.speeds.count(emitted, prompts)
        if self._look is not None:
            self._look.hits += accepted
            self._look.lost += self._lost(report, emitted, prompts)
        # Steps with trees for most are compared with what was hoped of trees for all: whoever has
        # just come, or is about to go, has none. Trees of other sizes are a part of what all bring,
        # but in looks.
        usual = seconds and (as_wide or self._look is None)
        hope = self._hope(report.batch) if usual else 0.0
        if hope and self.speeds.became(report.batch, emitted, hope * seconds):
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
        return self.looks.decided()

    def account(self, batch: int) -> Account:
        """Of steps of so many requests, by all that was seen."""
        self.rest.learn()
        return self.speeds.account(batch, self.sizes.best[0], self.looks.pays(batch))

    def _hope(self, batch: int) -> float:
        if batch not in self._hopes:
            hoped = self.speeds.of_trees(batch, self.sizes.best[0])
            self._hopes[batch] = hoped * self.costs.pace.now
        return self._hopes[batch]

    def _reassess(self, batch: int, anew: bool) -> None:
        """What a second is worth, and whether trees pay; `anew`: the width, too."""
        speeds, costs, sizes = self.speeds, self.costs, self.sizes
        costs.solve()
        if anew:
            self._prices_of.clear()
            self._hopes.clear()
            size = speeds.best_size(batch, sizes.best, all_levels=self.on_host)
            if size != sizes.best:
                sizes.best = size
                self.trees.become(*size)
        width = sizes.best[0]
        rate = speeds.beside_prompts(speeds.with_trees(batch, width), trees=True)
        plain = speeds.beside_prompts(speeds.of_plain(batch), trees=False)
        most, worth = batch * self.largest.nodes, max(rate, plain)
        prices = Prices.of(costs, batch, width, most, worth, few=self.on_host)
        self._prices = self._prices_of[batch] = prices
        self._worths, self._bins_below = self.trees.below()
        looks = self._looks(batch)
        if rate:
            looks.judge(rate, plain, costs.drifted(batch))
        elif looks.plans > 2 * look_steps(batch):
            # Steps that teach what trees take are rare.
            looks.pays = False


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
