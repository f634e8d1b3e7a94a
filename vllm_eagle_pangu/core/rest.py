# SPDX-License-Identifier: Apache-2.0
"""Steps that the drafter misses, as nobody is to have trees."""

from vllm_eagle_pangu.core.looks import TRIAL
from vllm_eagle_pangu.core.policy import StepReport
from vllm_eagle_pangu.core.speeds import Speeds

# All are told of at first, then one of so many, not a power of 2, as requests often are as long;
# and from so many at once is learnt: behind a forward even little work takes long.
TOLD, TOGETHER = 15, 16


class Rest:
    """One rest after the other, and what it tells `speeds`. `steps`: of the one that goes on."""

    def __init__(self, speeds: Speeds) -> None:
        self.steps = 0
        self._speeds = speeds
        # Those from which nothing was learnt yet, and how many more come soon after others.
        self._reports: list[StepReport] = []
        self._soon = 0

    @property
    def at_once(self) -> int:
        """For how many steps one is told of."""
        return TOLD if self.steps > TRIAL else 1

    def saw(self, report: StepReport) -> None:
        """Of a step of it."""
        self._reports.append(report)
        if len(self._reports) == TOGETHER:
            self.learn()

    def learn(self) -> None:
        """Let all that was seen count from now on."""
        for report in self._reports:
            self._speeds.costs.saw_missed(report, self._soon > 0)
            self._soon -= 1
            self._speeds.count(report.batch, report.rows - report.batch)
        self._reports.clear()

    def end(self) -> None:
        """A step follows that the drafter does not miss."""
        self.learn()
        self.steps, self._soon = 0, TRIAL
