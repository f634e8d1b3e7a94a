# SPDX-License-Identifier: Apache-2.0
"""What a step takes by what it does, followed as steps report it."""

import time

import numpy as np

from vllm_eagle_pangu.core.durations import Durations
from vllm_eagle_pangu.core.policy import StepReport

# The stages that only trees have.
OF_TREES = ("place", "accept", "commit", "extend", "grow")


class StepCosts:
    """T(batch, depth, nodes) = forward(batch + nodes) + trees + (depth - 1) level + rest.

    `forward`: seconds by rows of the target's forward with its logits and draws. By requests:
    `level`, of drafting a level below the first; `trees`, of the rest that only trees take; `rest`,
    of what any step takes. For stages that are measured where they run: on the host.
    """

    def __init__(self) -> None:
        self.forward, self.level = Durations(), Durations()
        self.trees, self.rest = Durations(), Durations()
        self.clock = time.perf_counter
        # Of the trees being drafted: seconds of their levels, and since when the last one runs.
        self._levels, self._since = 0.0, 0.0

    def of_step(self, batch: int, depth: float, nodes: np.ndarray) -> np.ndarray:
        """`[n]` seconds of steps that draft so deep, 0 for no trees, and verify `nodes: [n]`."""
        fixed = self.rest.at(batch)[0]
        if depth:
            fixed += (depth - 1) * self.level.at(batch)[0] + self.trees.at(batch)[0]
        return self.forward.at(batch + nodes) + fixed

    def drew(self, level: int, requests: int) -> None:
        """A level of so many trees is there."""
        now = self.clock()
        if level == 1:
            self._levels = 0.0
        else:
            self._levels += now - self._since
            self.level.add(requests, now - self._since)
        self._since = now

    def drew_last(self, requests: int) -> None:
        """The last level that there can be, to which other work was added before it was told."""
        self._levels += self.level.at(requests)[0]

    def saw(self, report: StepReport, trees: bool) -> float:
        """Learn from a step, which drafted for all if `trees`; returns its seconds."""
        seconds = dict(report.seconds)
        forward = seconds.pop("verify", 0.0) + seconds.pop("draw", 0.0)
        self.forward.add(report.rows, forward)
        # Time between two steps is the scheduler's; if it is long, nobody asked for anything.
        seconds["between"] = min(seconds.get("between", 0.0), forward)
        whole = forward + sum(seconds.values())
        if trees and report.tree is not None and "grow" in seconds:
            took = sum(seconds.pop(stage, 0.0) for stage in OF_TREES)
            self.trees.add(report.batch, max(took - self._levels, 0.0))
        self.rest.add(report.batch, sum(seconds.values()))
        return whole
