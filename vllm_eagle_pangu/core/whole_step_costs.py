# SPDX-License-Identifier: Apache-2.0
"""What a step takes of which no more is known than when it is done."""

from collections.abc import Sequence

import numpy as np

from vllm_eagle_pangu.core.costs import StepCosts, kind_of, since_the_last
from vllm_eagle_pangu.core.durations import ENOUGH, Durations
from vllm_eagle_pangu.core.policy import StepReport


class WholeStepCosts(StepCosts):
    """Seconds of steps whose stages run on a device: the host knows when all is done, no more.

    So a step with trees is one sum, over rows of the forward, padded to the next of `sizes`, and
    over levels and their rows: `whole`.
    """

    PARTS = ("plain", "whole")
    LEARNT = (*PARTS, *StepCosts.BESIDE)

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        # Behind the last one nothing is padded.
        self.sizes = np.array(sorted(sizes), float)
        self.whole = Durations(6, self.pace)
        self._plain_rest = self.plain
        self._below = 0

    @property
    def known(self) -> int:
        """See `StepCosts`."""
        return self.whole.known

    def of_features(self) -> np.ndarray:
        """See `StepCosts`; with all that does not depend on levels, and always with trees."""
        return np.append(self.whole.each[:3], 0.0)

    def padded(self, rows: np.ndarray) -> np.ndarray:
        """See `StepCosts`."""
        padded = np.append(self.sizes, np.inf)[np.searchsorted(self.sizes, rows)]
        return np.where(np.isfinite(padded), padded, rows)

    def of_level(self, rows: int) -> float:
        """See `StepCosts`."""
        return self.whole.of(0, 0, 0, 0, 1, rows)

    def of_rest(self, trees: int, width: int) -> float:
        """See `StepCosts`: it is in the forward."""
        return 0.0

    def of_prompt_row(self, trees: bool) -> float:
        """See `StepCosts`; what it takes with trees is one with what the drafter takes."""
        beside = self.whole.of(0, 0, 0, 1, 0, 0)
        target = self.plain.of(0, 0, 1) or beside
        return target + trees * self._read_share * max(beside - target, 0.0)

    def drew(self, level: int) -> None:
        """See `StepCosts`: so many levels are drafted below the first."""
        self._below = level

    def saw(self, report: StepReport, drafted: int, before: int, width: int) -> float:
        """See `StepCosts`."""
        took = sum(self.believed(report)) - self.aside
        below, self._below, self.aside = self._below, 0, 0.0
        batch, verified = report.batch, report.batch + report.nodes
        prompts, had = report.rows - verified, before > batch / 2
        if not report.nodes and not drafted and not before:
            self._saw_plain((1, batch, prompts), took)
        elif drafted > batch / 2 and (prompts or had):
            rows = float(self.padded(np.array(verified)))
            features = 1, rows, batch, prompts, below, below * drafted * width
            reckoned = self.whole.of(*features[:3], 0, *features[4:])
            kind = kind_of(batch, trees=True)
            usual = reckoned * self.pace.misfit(kind) / self.pace.now
            if reckoned and not prompts and self.known > ENOUGH:
                self.pace.saw(took, reckoned, kind, self.whole.memory)
            self.whole.add(features, took)
            self.read_beside += prompts
            if had and self.known > ENOUGH:
                return usual
        return 0.0

    @staticmethod
    def believed(report: StepReport) -> tuple[float, float]:
        """None, and seconds of all: how long the forward takes is not seen."""
        seconds = dict(report.seconds)
        between = since_the_last(report, seconds, sum(seconds.values()) / 2)
        return 0.0, between + sum(seconds.values())
