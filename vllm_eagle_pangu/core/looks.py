# SPDX-License-Identifier: Apache-2.0
"""When a batch drafts trees, and when it looks at what steps take with them and without."""

from dataclasses import dataclass
from math import log2
from typing import ClassVar

# So much faster trees have to be than plain decoding to be drafted, and to be drafted again: when
# requests get out of step their prompts come one by one, and the head has to catch up first.
AHEAD, AHEAD_AGAIN = 1.02, 1.05
# What steps take without trees and with them is looked at for so many steps, with trees for so many
# requests at least, as often as loses this share of all time, the larger one where trees nearly
# pay: so many steps apart at least and at most, at plain steps at first no more than the least, and
# twice as many from look to look; at trees only once the drafter has followed for so
# many steps, and at all widths and levels in one of so many looks, the very first one too.
LOOK_AT_PLAIN, LOOK_AT_TREES, TREES, LOOKING = 8, 8, 32, (0.005, 0.01)
PLAIN_APART, TREES_APART = (64, 512), (256, 4096)
FOLLOWED, LOOK_AT_ALL = 32, 4
# Behind so many looks in vain, one behind the other, they are no more seldom: each doubles what
# they are apart at least, as what they lose is reckoned by plain steps that may be faster by then.
VAIN = 3
# Where trees pay, or nearly, a look goes on for so many times as many: a few dozen trees tell a
# fifth from nothing, not a tenth, and none are drafted for long behind one that finds too little.
# Nearly: with a rate that is less by so little, or as chance has it with n trees of texts that are
# alike: by no more than this by the root of n. Behind a look in vain half of that is left to them,
# and half of the trees before count: what one look found the next one need not find again.
GOES_ON, NEAR, CHANCE = 8, 0.05, 1.4
# Where trees are faster by less, the policy rests for `TRIAL` steps, as only these tell what plain
# decoding takes where nobody follows: behind so many trees, and so many steps apart.
UNSURE, TRIAL, SETTLED, TRIED = 1.1, 32, 256, 4096
# A look is over of which so many trees hit nothing, and none anything: of a head whose trees pay
# one in four hits at the least, and what it misses is looked for again before long.
HOPELESS = 12
# Nor is it longer than for `TREES` trees once it took the time of so many plain steps beyond those
# for its tokens: the widest trees of many requests may take as long as several each.
DEAR = 8
# Of about one size are batches that are so near to one, in halvings: requests come and go, and what
# was decided of them is not decided again whenever one does.
SAME_SIZE = 0.75


def look_steps(batch: int, times: int = 1) -> int:
    """Plans at first, and after every so many, in which plain steps and trees are looked at, at so
    many times as many trees; that is no longer where a few steps have them."""
    return LOOK_AT_PLAIN + max(LOOK_AT_TREES, times * TREES // batch)


@dataclass
class Looks:
    """Of batches of about one size: whether trees pay, or nearly do; how many looks at trees began,
    `plans` since the last one did, whether it goes on, seconds that it took beyond plain steps for
    its tokens, and after how many plans the next one begins where none pay; the same of looks at
    plain steps where they do."""

    pays: bool = True
    near: bool = True
    looks: int = 1
    plans: int = 0
    looking: bool = False
    lost: float = 0.0
    pause: int = TREES_APART[0]
    plain_plans: int = 0
    plain_pause: int = PLAIN_APART[0]
    plain_looks: int = 0
    # Looks at trees in vain, one behind the other; trees since the last one began, with half of
    # those before if these were in vain; whether they hardly pay, whether a rest is tried, and from
    # which plan on one may be again.
    vain: int = 0
    trees: int = 0
    unsure: bool = False
    tries: bool = False
    try_from: int = 0
    # Since the last look began, drafted tokens that were accepted, and trees that hit nothing; and
    # whether it ended by that.
    hits: int = 0
    misses: int = 0
    hopeless: bool = False

    @classmethod
    def later(cls, batch: int, near: bool) -> "Looks":
        """Where trees do not pay, or `near`ly, for fewer requests: a pause comes first."""
        soonest, latest = TREES_APART
        return cls(False, near, 1, look_steps(batch), pause=soonest if near else latest)

    @property
    def drafts(self) -> bool:
        """Whether trees are wanted."""
        return self.pays or self.looking

    @property
    def at_plain(self) -> bool:
        """Whether plain steps are looked at."""
        return self.plain_plans < LOOK_AT_PLAIN

    def begin(self) -> bool:
        """Whether another look at trees is due; it begins."""
        if self.looking or self.plans < (TREES_APART[1] if self.pays else self.pause):
            return False
        self.plans, self.lost, self.looks = 0, 0.0, self.looks + 1
        self.plain_plans, self.tries = 0, False
        self.hits, self.misses, self.hopeless = 0, 0, False
        self.trees = self.trees // 2 if self.vain else 0
        return True

    def begin_at_plain(self) -> bool:
        """Whether a look at plain steps begins."""
        if self.plain_plans >= self.plain_pause:
            self.plain_plans, self.plain_looks = 0, self.plain_looks + 1
        return self.plain_plans == 0

    def planned(self) -> None:
        """Another step, which the drafter follows."""
        self.plans += 1
        self.plain_plans += 1

    def at_all(self, batch: int) -> bool:
        """Whether it is looked at trees of all widths and levels: half of such a look at the
        widest, half as they are by now, or as narrow as may be where these are the widest."""
        return self.looking and self.plans <= look_steps(batch) and self.looks % LOOK_AT_ALL == 1

    def give_up(self) -> bool:
        """Whether so many trees hit nothing that the look at them ends: none pays till the next."""
        long_enough = self.plans >= LOOK_AT_PLAIN + LOOK_AT_TREES
        if self.looking and long_enough and not self.hits and self.misses >= HOPELESS:
            self.hopeless, self.pays, self.near = True, False, False
        return self.hopeless

    def is_dear(self, batch: int, plain_s: float) -> bool:
        """Whether a look took as long as it may, and long enough to tell something."""
        trees = (self.plans - LOOK_AT_PLAIN) * batch
        return trees >= TREES and self.lost > DEAR * plain_s > 0

    def judge(self, rate: float, plain: float, drifted: bool) -> None:
        """Tokens per second are to be `rate` with trees, and `plain` without; `drifted`: plain
        steps may take another time by now than when these were looked at."""
        waits = self.tries or self.hopeless
        self.pays = not waits and rate > plain * (AHEAD if self.pays else AHEAD_AGAIN)
        left = max(NEAR, CHANCE / max(self.trees, 1) ** 0.5) / (2 if self.vain else 1)
        self.near = not self.hopeless and rate * (1 + left) > plain
        self.unsure = rate < plain * UNSURE
        least, most = PLAIN_APART
        lost = 0 if drifted else LOOK_AT_PLAIN * (1 - plain / rate)
        most = min(most, least << self.plain_looks)
        self.plain_pause = min(max(int(lost / LOOKING[False]), least), most)

    def end(self, plain_s: float) -> None:
        """A look at trees ends; a plain step takes `plain_s`, 0 if that is unknown."""
        pause = int(self.lost / (LOOKING[self.near] * plain_s)) if plain_s else 0
        least, most = TREES_APART
        self.pause = self.plans + min(max(pause, least << self.vain), most)
        self.vain = 0 if self.pays else min(self.vain + 1, VAIN)

    def try_a_rest(self, batch: int, now: int) -> bool:
        """Whether one is due: where trees hardly pay, by what plain steps take that the drafter
        follows; it begins. `now`: plans of all sizes so far."""
        settled = self.trees >= SETTLED and not self.looking
        if not (self.pays and self.unsure and settled and now >= self.try_from):
            return False
        self.pays, self.tries, self.try_from = False, True, now + TRIED
        self.plans = look_steps(batch, GOES_ON)
        self.pause = self.plans + TRIAL
        return True

    def tried(self) -> None:
        """The rest is over; where trees do not pay it goes on."""
        self.pays, self.tries = True, False
        self.pause = self.plans + TREES_APART[0]


class LooksBySize:
    """Of batches of all sizes, by the power of 2 that they are about."""

    LEARNT = ("by_power",)
    ITEMS: ClassVar = {"by_power": (0, Looks())}

    def __init__(self) -> None:
        self.by_power: dict[int, Looks] = {}
        self._power = 0

    @property
    def last(self) -> Looks:
        """Those that were asked for last."""
        return self.by_power[self._power]

    def of(self, batch: int, known_at_all: bool) -> Looks:
        """Of batches of about this size. Where trees do not pay for fewer requests, they are not
        looked at for more at first, as rows are then dearer. `known_at_all`: of other batches it is
        known what trees of all widths and levels hold."""
        if abs(log2(batch) - self._power) > SAME_SIZE or not self.by_power:
            self._power = round(log2(batch))
        if self._power not in self.by_power:
            fewer = max((each for each in self.by_power if each < self._power), default=None)
            if fewer is not None and not self.by_power[fewer].pays:
                first = Looks.later(batch, self.by_power[fewer].near)
            else:
                first = Looks(looks=2 if known_at_all else 1)
            self.by_power[self._power] = first
        return self.last

    def decided(self) -> dict[int, bool]:
        """Whether trees pay, by the numbers of requests, powers of 2, near which there were any."""
        return {2**power: looks.pays for power, looks in sorted(self.by_power.items())}

    def pays(self, batch: int) -> bool:
        """What was decided of batches of the nearest size, if anything was."""
        powers = sorted(self.by_power, key=lambda power: abs(power - log2(batch)))
        return bool(powers) and self.by_power[powers[0]].pays
