# SPDX-License-Identifier: Apache-2.0
"""What a step takes by what it does, followed as steps report it."""

import time
from collections.abc import Iterator, Sequence
from math import log2
from typing import ClassVar

import numpy as np

from vllm_eagle_pangu.core.bends import Bends
from vllm_eagle_pangu.core.durations import ENOUGH, LONG_MEMORY, Durations, Pace
from vllm_eagle_pangu.core.policy import NONE, StepReport, Unasked

# A machine became another where forwards take, at one pace, so many times as long, or as little:
# plain steps are looked at sooner. Where the last few do, those before are believed little.
DRIFT, LAST, DOUBTED = 1.25, 8, 1 / 8
# What a step leaves out that the drafter misses; what it takes of the rest is hardly less or more
# than this share, the mean of up to so many times that it was seen, and of 1, seen so often before.
FOLLOWING = ("place", "accept", "commit", "extend", "grow")
SHARES, MISSED, ASSUMED = (0.75, 1.25), 16, 3
# What was learnt in another engine counts as so many times.
HANDED_ON = 16
# From so many tokens of prompts beside trees on it is known what the drafter takes for one.
READ = 512


class StepCosts:
    """Seconds of steps, with trees: T(batch, depth, nodes) = forward + (depth - 1) level + rest.

    `plain`: of a step without trees, which the drafter follows, without its part, by requests; one
    that it misses takes a share of that: less, as vLLM leaves out more and the forward finds its
    own in the caches, or up to the drafter's part more, where what a server does on the same cores
    fell beside the drafter, and now falls beside the forward. `forward`: of the target, with its
    logits and draws, by rows and requests, with trees for most or none, and more if it verifies any
    node: that goes another way. With trees for most, `level`: of drafting a level below the first,
    by rows; `rest`: of all else, by trees and rows of a level.
    Each but a level also by rows of prompts: behind trees the drafter reads these, too. For stages
    that are measured where they run: on the host. Steps whose rows, or rows of a level, are of a
    number that was never seen teach nothing, unless they read prompts, as on a CPU the first matrix
    product of a size takes far longer. `pace`: of them all, told by steps that read no prompts, as
    is how far a forward, or a plain step, of a batch of about one size is from these sums. `bends`:
    how far forwards that verify some nodes are by their number of rows.
    """

    PARTS: ClassVar[Sequence[str]] = (
        *("plain", "_plain_rest", "_following"),
        *("forward", "level", "rest"),
    )
    # What else is learnt.
    BESIDE: ClassVar[Sequence[str]] = ("pace", "bends", "_shares", "_forward_then", "read_beside")
    LEARNT: ClassVar[Sequence[str]] = (*PARTS, *BESIDE)
    ITEMS: ClassVar = {"_shares": (0, (1.0, 0))}

    def __init__(self) -> None:
        self.pace, self.bends = Pace(), Bends()
        # Beside trees of about one size little tells what their rows take.
        self.forward = Durations(5, self.pace, LONG_MEMORY)
        self.level, self.rest = Durations(2, self.pace), Durations(4, self.pace)
        self.plain = Durations(3, self.pace)
        # Of plain steps, all but the forward.
        self._plain_rest = Durations(3, self.pace)
        # The drafter's part of them.
        self._following = Durations(3, self.pace)
        self.clock = time.perf_counter
        # `[4]`: as `of_features`, at a pace of 1, as they were at the last look at plain steps.
        self._forward_then = np.zeros(4)
        # Of what was expected of the last plain steps, what they took.
        self._plain_came = 1.0
        # Of the trees being drafted, of levels below the first: their seconds, how many these are
        # of, how many there are beside, and since when the last one runs.
        self._levels, self._timed, self._more, self._since = 0.0, 0, 0, 0.0
        # Of the step, seconds that are not to count.
        self.aside = 0.0
        # By the power of 2 that holds the batch, that share, and how often it was seen.
        self._shares: dict[int, tuple[float, int]] = {}
        # Steps that the drafter missed; tokens of prompts that were read beside trees.
        self.missed = self.read_beside = 0
        # By the size of batches, the bends as last solved for; at single numbers of rows, by batch.
        self._curves: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._bent: dict[tuple[int, int], float] = {}
        # Numbers of rows that forwards had before, and levels.
        self._rows, self._level_rows = set[int](), set[int]()
        # Whether the last step was the first one with one of its numbers.
        self.first_time = False

    @property
    def known(self) -> int:
        """Steps with trees that were learnt from."""
        return self.rest.known

    def expect(self, rows: int, seconds: float) -> None:
        """A forward of so many rows is believed to take `seconds`."""
        self.forward.expect((1, rows, 0, 0, 0), seconds)

    def _parts(self) -> Iterator[Durations]:
        return (getattr(self, name) for name in self.PARTS)

    def solve(self) -> None:
        """Let all that was seen count from now on."""
        for part in self._parts():
            part.solve()
        self._curves.clear()
        self._bent.clear()

    def doubt(self) -> None:
        """It was learnt in another engine, on a machine that may be busier by now, or idle."""
        for part in self._parts():
            part.believe_less(HANDED_ON)
        self.bends.doubt(HANDED_ON)

    def drifted(self, batch: int) -> bool:
        """Whether a forward with a node for each request takes far more, or less, at one pace than
        when plain steps were last looked at: then these may do so, too."""
        features = (1, 2 * batch, batch, 1)
        then, now = self._forward_then @ features, self.of_features() @ features / self.pace.now
        return bool(then and not 1 / DRIFT < now / then < DRIFT)

    def look_at_plain(self, batch: int) -> None:
        """Plain steps of so many requests come next."""
        self._plain_came = 1.0
        self._forward_then = self.of_features() / self.pace.now

    def of_plain(self, batch: int) -> float:
        """Seconds of a step without trees that the drafter misses; 0 where none was seen."""
        seconds = self.plain.of(1, batch, 0) * self._share(batch)
        return seconds * self.pace.misfit(kind_of(batch, trees=False))

    def _share(self, batch: int) -> float:
        """As with the nearest batch size of which it is known."""
        nearest = min(self._shares, key=lambda size: abs(size - batch.bit_length()), default=0)
        share, _ = self._shares.get(nearest, (1.0, 0))
        plain = self.plain.of(1, batch, 0)
        return min(share, 1 + self._following.of(1, batch, 0) / plain) if plain else 1.0

    def saw_missed(self, report: StepReport, soon: bool, unasked: Unasked = NONE) -> None:
        """Learn from a step without trees that the drafter misses, and from what followed upon it
        `unasked`; `soon` after steps that it followed they tell the share of these that they take:
        in a slow second no more than with the drafter's part."""
        self.missed += 1
        first_time = report.rows not in self._rows
        self._rows.add(report.rows)
        if first_time and report.rows == report.batch:
            return
        batch, took = report.batch, sum(self.believed(report))
        features = 1, batch, report.rows - batch
        if report.rows == batch == unasked.batch:
            took = (took + unasked.seconds) / (1 + unasked.timed)
        usual = self.plain.of(*features)
        if not soon or not usual:
            self._saw_plain(features, took / self._share(batch))
            return
        share, known = self._shares.get(batch.bit_length(), (1.0, 0))
        known = min(known + 1, MISSED)
        least, most = SHARES
        share += (min(max(took / usual, least), most) - share) / (ASSUMED + known)
        self._shares[batch.bit_length()] = share, known

    def _saw_plain(self, features: tuple[int, int, int], seconds: float) -> None:
        """As if the drafter followed."""
        usual, (_, batch, prompts) = self.plain.of(*features), features
        if usual and not prompts and self.plain.known > ENOUGH:
            self._plain_came += (seconds / usual - self._plain_came) / LAST
            if not 1 / DRIFT < self._plain_came < DRIFT:
                self.plain.doubt(DOUBTED)
                self._plain_came = 1.0
            self.pace.saw(seconds, usual, kind_of(batch, trees=False), self.plain.memory)
        self.plain.add(features, seconds)

    def of_forward(self, batch: int, nodes: np.ndarray) -> np.ndarray:
        """`[n]` seconds of forwards that verify `nodes: [n]` of trees of a batch."""
        first, row, request, any_node = self.of_features()
        rows = self.padded(batch + nodes)
        seconds = first + row * rows + request * batch + any_node * (nodes > 0)
        seconds *= self.pace.misfit(kind_of(batch, trees=True))
        return np.where(nodes > 0, seconds * self._bend(batch, rows), seconds)

    def _bend(self, batch: int, rows: np.ndarray) -> np.ndarray:
        """`[n]`: how many times as long as the sum says forwards of so many rows take."""
        kind = _, size = kind_of(batch, trees=True)
        if size not in self._curves:
            at_1 = self.pace.misfit(kind) / self.pace.now
            first, row, request, any_node = self.of_features() * at_1
            first += request * 2**size + any_node
            self._curves[size] = self.bends.curve(size, first, row)
        return np.interp(rows, *self._curves[size])

    def _bend_at(self, batch: int, rows: int) -> float:
        """`_bend` of one number of rows: a few come again and again."""
        if (batch, rows) not in self._bent:
            self._bent[batch, rows] = float(self._bend(batch, np.array(rows)))
        return self._bent[batch, rows]

    def of_features(self) -> np.ndarray:
        """`[4]` seconds of a forward, of each row, of each request, and of verifying any node."""
        return self.forward.each[:4]

    def padded(self, rows: np.ndarray) -> np.ndarray:
        """`[n]`: of how many rows forwards are that have so many to compute."""
        return rows

    def of_level(self, rows: int) -> float:
        """Seconds of a level below the first, of as many rows as trees are wide together."""
        return self.level.of(1, rows)

    def of_rest(self, trees: int, width: int) -> float:
        """Seconds of all but the forward and the levels below the first."""
        return self.rest.of(1, trees, trees * width, 0)

    def of_prompt_row(self, trees: bool) -> float:
        """Seconds that a token of a prompt adds to a step, with trees or without: the target reads
        it in both, and takes what it does beside trees once enough was read there, as of a rest few
        steps are told, and at first the long ones of requests that come together."""
        plain, drafter = self.plain.of(0, 0, 1), self.rest.of(0, 0, 0, 1)
        target, without = self.forward.of(0, 0, 0, 0, 1), self._plain_rest.of(0, 0, 1)
        if plain:
            # All else than the forward takes as much without trees.
            drafter = max(drafter - without, 0.0)
            target = plain if self.read_beside < READ or not target else target + without
        return target + trees * self._read_share * drafter

    @property
    def _read_share(self) -> float:
        """How far it is believed what prompts take beside trees: by how many tokens say so, as a
        step that reads a few may take long for other reasons."""
        return min(self.read_beside / READ, 1.0)

    def of_trees(self, batch: int, levels: np.ndarray, nodes: np.ndarray, width: int) -> np.ndarray:
        """Seconds of steps that draft so many levels for all and verify `nodes`, both of a shape
        that broadcasts."""
        below = self.of_level(batch * width) * (levels - 1)
        return self.of_forward(batch, nodes) + below + self.of_rest(batch, width)

    def drew(self, level: int) -> None:
        """A level of trees is there."""
        now = self.clock()
        self._levels = 0.0 if level == 1 else self._levels + now - self._since
        self._timed, self._more, self._since = level - 1, 0, now

    def drew_last(self) -> None:
        """The last level that there can be, to which other work was added before it was told."""
        self._more = 1

    def saw(self, report: StepReport, drafted: int, before: int, width: int) -> float:
        """Learn from a step, which drafted so many trees, so wide, and the one before it so many;
        returns what it was to take without prompts, at a pace of 1, and 0 where it does not tell
        what trees take."""
        forward, rest = self.believed(report)
        rest -= self.aside
        self.aside = 0.0
        batch, verified = report.batch, report.batch + report.nodes
        rows, prompts = drafted * width, report.rows - verified
        # The drafter may read prompts later, with those of other steps.
        had, read = before > batch / 2, max(prompts - report.late, 0)
        known = (prompts or report.rows in self._rows) and rows in self._level_rows
        self._rows.add(report.rows)
        self._level_rows.add(rows)
        self.first_time = not known
        if not known:
            return 0.0
        # The first step behind one with trees finds other things in the caches.
        if not report.nodes and not drafted and not before:
            following = sum(report.seconds.get(stage, 0.0) for stage in FOLLOWING)
            rest -= following
            features = 1, batch, prompts
            self._following.add((1, batch, read), following)
            self._saw_plain(features, forward + rest)
            self._plain_rest.add(features, rest)
            self.forward.add((1, batch, batch, 0, prompts), forward)
        elif drafted > batch / 2 and (prompts or had):
            of_trees = 1, verified, batch, int(report.nodes > 0)
            of_level, of_forward = self.of_level(rows), self.forward.of(*of_trees, 0)
            kind = kind_of(batch, trees=True)
            usual = of_forward * self.pace.misfit(kind)
            if report.nodes:
                usual *= self._bend_at(batch, verified)
            usual += (self._timed + self._more) * of_level
            usual = (usual + self.of_rest(drafted, width)) / self.pace.now
            levels = self._levels + self._more * of_level
            if of_forward and not prompts and self.forward.known > ENOUGH:
                self.pace.saw(forward, of_forward, kind, self.forward.memory)
            if self._timed:
                self.level.add((1, rows), self._levels / self._timed)
            self.rest.add((1, drafted, rows, read), max(rest - levels, 0.0))
            self.read_beside += prompts
            # Whoever has just come has no tree yet, and of one or two nobody else may have one.
            if had:
                self.forward.add((*of_trees, prompts), forward)
                if report.nodes and forward and not prompts:
                    self.bends.saw(kind[1], verified, forward / self.pace.now)
                if self.rest.known > ENOUGH:
                    return usual
        return 0.0

    @staticmethod
    def believed(report: StepReport) -> tuple[float, float]:
        """Seconds of the forward, with its draws, and of all else."""
        seconds = dict(report.seconds)
        forward = seconds.pop("verify", 0.0) + seconds.pop("draw", 0.0)
        return forward, since_the_last(report, seconds, forward) + sum(seconds.values())


def kind_of(batch: int, trees: bool) -> tuple[bool, int]:
    """Forwards of batches of about one size, with trees, or plain steps."""
    return trees, round(log2(batch))


def since_the_last(report: StepReport, seconds: dict[str, float], most: float) -> float:
    """Seconds since the step before, out of a report's: the scheduler's. Where they are more than
    `most`, and where prompts are read, nobody may have asked for anything before: then 0."""
    between = seconds.pop("between", 0.0)
    return 0.0 if between > most or report.rows > report.batch + report.nodes else between
