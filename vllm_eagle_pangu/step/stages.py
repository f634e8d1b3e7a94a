# SPDX-License-Identifier: Apache-2.0
"""The stages of a step, for whoever watches: traces subscribe here, policies are told the times."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

if TYPE_CHECKING:
    from vllm_eagle_pangu.core.policy import StepReport
    from vllm_eagle_pangu.step.accept import Accepted, Unseen
    from vllm_eagle_pangu.step.checks import Checks
    from vllm_eagle_pangu.step.commit import Committed
    from vllm_eagle_pangu.step.grow import Drafted
    from vllm_eagle_pangu.step.place import Placed

# `prepare`: vLLM's batch; `verify`: the target's forward and logits; `draw`: vLLM's sampler;
# `other`: the rest of vLLM's step; `between`: no step runs.
Stage = Literal[
    "between", "prepare", "place", "verify", "draw", "accept", "commit", "extend", "grow", "other"
]

# What stages give: `place`, `accept`, `commit` and `grow`, in this order.
Result: TypeAlias = "Placed | Accepted | Committed | Drafted"
Found = TypeVar("Found", bound=Result)


class Observer:
    """Does nothing; override what is of interest. Called in the step, so be quick."""

    def began(self, started: Sequence[str], finished: Sequence[str]) -> None:
        """A step begins. Requests that are new in it, and those that left since the last one."""

    def entered(self, stage: Stage) -> None:
        """`stage` runs from now on, till the next one is entered."""

    def found(self, result: "Result") -> None:
        """What a stage gave: see `Result`."""

    def ended(self, report: "StepReport") -> None:
        """The step has ended; what it did, and its times."""

    def failed(self, error: Exception) -> None:
        """The step was broken off by `error`."""


class Stages:
    """Tells its observers where a step is, measures its stages, and checks what they give.

    `times`: seconds by stage since the step began, as the host sees them: on a device, work is
    queued faster than done. Stages do not overlap, so their sum is the step's time.
    """

    def __init__(self, checks: "Checks") -> None:
        self.checks = checks
        self.observers: tuple[Observer, ...] = ()
        self.times: dict[str, float] = {}
        self._stage: Stage = "between"
        self._since = time.perf_counter()

    def begin(self, started: Sequence[str], finished: Sequence[str]) -> None:
        """A step begins, in the stage `other`; `times` then holds only what was before it."""
        # After a failure the time since then lies between the steps, too.
        self._stage = "between"
        self.times = {}
        for observer in self.observers:
            observer.began(started, finished)
        self.enter("other")

    def resume(self) -> None:
        """Nobody asked for a step since the last one: that time counts as none."""
        self._since = time.perf_counter()

    def lap(self) -> float:
        """Seconds since the stage began, or the last lap; those count as none."""
        now = time.perf_counter()
        took, self._since = now - self._since, now
        return took

    def enter(self, stage: Stage) -> None:
        """`stage` runs from now on."""
        now = time.perf_counter()
        self.times[self._stage] = self.times.get(self._stage, 0.0) + now - self._since
        self._stage, self._since = stage, now
        for observer in self.observers:
            observer.entered(stage)

    def found(self, result: Found) -> Found:
        """Hand on what a stage gave. Raises AssertionError where an invariant does not hold."""
        for observer in self.observers:
            observer.found(result)
        self.checks.check(result)
        return result

    def end(self, step: "Accepted | Unseen", late: int) -> "StepReport":
        """The step is over: hand on what it did, and its times, which are known now. `late`: see
        `core.policy.StepReport`."""
        self.enter("between")
        report = step.report(self.times, late)
        for observer in self.observers:
            observer.ended(report)
        return report

    def fail(self, error: Exception) -> None:
        """The step was broken off by `error`."""
        for observer in self.observers:
            observer.failed(error)
