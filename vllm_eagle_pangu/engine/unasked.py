# SPDX-License-Identifier: Apache-2.0
"""Steps of a rest that pass as plain decoding's, with nobody asked and nobody told."""

from math import log2
from typing import TYPE_CHECKING

import numpy as np

from vllm_eagle_pangu.core.policy import Unasked

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput

    from vllm_eagle_pangu.engine.runner import TreeRunnerMixin

# So many halvings or doublings are as many requests: whoever comes or goes is no reason to ask, and
# a step that is told of takes longer.
ABOUT = 0.5
# What a step calls, in every line of vLLM.
_OF_A_STEP = {"_prepare_inputs", "_build_attention_metadata", "_sample", "sample_tokens"}


class UnaskedSteps:
    """Up to `left` more steps of about as many requests as the last one.

    In these the runner's methods make way for vLLM's own. Behind a forward, which leaves little in
    the caches, even a method that only calls on takes some microseconds: all of them, and all that
    they call, 1 or 2 % of a small model's step.
    """

    def __init__(self, runner: "TreeRunnerMixin") -> None:
        self.runner = runner
        self.left = self._batch = 0
        self._own = runner.speculative_config
        # Since they were last counted, steps, tokens that they emitted, rows, and those that are
        # timed, with their seconds.
        self._passed = self._emitted = self._rows = self._timed = 0
        self._seconds = 0.0
        # Where rows are written to, and where those of the steps were, which the drafter misses.
        self._slots, self._written = np.zeros(0), list[np.ndarray]()

    def begin(self, batch: int, steps: int) -> None:
        """Up to `steps` of about `batch` requests come next; no draft of the last one is left."""
        if not steps:
            return
        runner = self.runner
        self.left, self._batch, self._slots = steps, batch, runner.host_slots()
        # As where nobody speculates.
        self._own, runner.speculative_config = runner.speculative_config, None
        for name, method in runner.vllm_methods(_OF_A_STEP).items():
            setattr(runner, name, method)

    def covers(self, step: "SchedulerOutput") -> bool:
        """Whether `step` is one of them, for which vLLM's methods do."""
        batch = len(step.num_scheduled_tokens)
        near = batch == self._batch or (batch > 0 and abs(log2(batch / self._batch)) <= ABOUT)
        return near and self.runner.does_as_vllm(step)

    def passed(self, step: "SchedulerOutput") -> None:
        """Another one's forward was called for; its tokens are still to be drawn."""
        rows, seconds = step.total_num_scheduled_tokens, self.runner.stages.lap()
        batch = len(step.num_scheduled_tokens)
        # Before a new request comes nobody may have asked for anything.
        if self._written and rows == batch == self._batch and not step.scheduled_new_reqs:
            self._timed, self._seconds = self._timed + 1, self._seconds + seconds
        self._passed, self._rows = self._passed + 1, self._rows + rows
        self._emitted += batch
        self._written.append(self._slots[:rows].copy())
        self.left -= 1
        if not self.left:
            del self.runner.sample_tokens

    @property
    def ends(self) -> bool:
        """Whether the last one is to draw its tokens."""
        return not self.left and bool(self._written)

    def end(self) -> None:
        """They are over, or what comes next is none of them."""
        runner = self.runner
        runner.speculative_config = self._own
        for name in vars(runner).keys() & _OF_A_STEP:
            delattr(runner, name)
        self.left = 0
        if self._written:
            runner.step.drafter.miss(np.concatenate(self._written))
            self._written.clear()

    def count(self) -> Unasked:
        """Those since this was last asked for."""
        steps = self._passed, self._emitted, self._rows, self._timed
        counted = Unasked(self._batch, *steps, self._seconds)
        self._passed = self._emitted = self._rows = self._timed = 0
        self._seconds = 0.0
        return counted
