# SPDX-License-Identifier: Apache-2.0
"""Steps that the drafter misses, as nobody is to have trees."""

from vllm_eagle_pangu.core.looks import TRIAL
from vllm_eagle_pangu.core.policy import NONE, StepReport, Unasked
from vllm_eagle_pangu.core.speeds import Speeds

# One of `TOLD` is told of at first, later one of as many as a `SELDOM`th of the rest so far, up to
# `TOLD_LATE`: no powers of 2, as requests often are as long. From `TOGETHER` of them at once is
# learnt: behind a forward even little work takes long.
TOLD, SELDOM, TOLD_LATE, TOGETHER = 15, 8, 61, 16


class Rest:
    """One rest after the other, and what it tells `speeds`. `steps`: of the one that goes on."""

    def __init__(self, speeds: Speeds) -> None:
        self.steps = 0
        self._speeds = speeds
        # Those from which nothing was learnt yet, whether they came soon after steps that are none,
        # and what followed upon each of them unasked.
        self._reports: list[tuple[StepReport, bool, Unasked]] = []
        # Whether nobody was told yet that it has lasted for `TRIAL` steps.
        self._is_new = True

    def lasts(self) -> bool:
        """Whether it does since this was last asked: by now it is known what such steps take."""
        lasts = self._is_new and self.steps >= TRIAL
        self._is_new &= not lasts
        return lasts

    def stretch(self) -> int:
        """For so many steps, the one that it is told of among them, nobody is asked again."""
        return min(max(TOLD, self.steps // SELDOM), TOLD_LATE)

    def saw(self, report: StepReport) -> None:
        """Of a step of it."""
        # Not yet from the last one: what follows upon it is not known.
        if len(self._reports) == TOGETHER:
            self.learn()
        self._reports.append((report, self.steps <= TRIAL, NONE))

    def passed(self, unasked: Unasked) -> None:
        """These followed upon the last one that it was told of."""
        self.steps += unasked.steps
        self._speeds.count(unasked.emitted, unasked.rows - unasked.emitted, unasked.steps)
        if self._reports and unasked.timed:
            self._reports[-1] = *self._reports[-1][:2], unasked

    def learn(self) -> None:
        """Let all that was seen count from now on."""
        for report, soon, unasked in self._reports:
            self._speeds.costs.saw_missed(report, soon, unasked)
            self._speeds.count(report.batch, report.rows - report.batch)
        self._reports.clear()

    def end(self) -> None:
        """A step follows that the drafter does not miss."""
        self.learn()
        self.steps, self._is_new = 0, True
