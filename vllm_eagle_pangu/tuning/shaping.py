# SPDX-License-Identifier: Apache-2.0
"""Makes an engine draft another shape at every step."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from vllm_eagle_pangu.core.policy import StepReport
from vllm_eagle_pangu.core.request import RequestView
from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.step.drafter import Drafter
from vllm_eagle_pangu.step.stages import Observer


class NextShape:
    """A `TreePolicy`: every tree has the shape that was set last."""

    def __init__(self) -> None:
        self.shape: TreeShape | None = None

    def plan(self, requests: Sequence[RequestView]) -> Sequence[TreeShape | None]:
        """See `TreePolicy`."""
        return [self.shape] * len(requests)

    def observe(self, report: StepReport) -> None:
        """See `TreePolicy`."""


@contextmanager
def exchanged(
    runner: Any,
    policy: NextShape | None = None,
    drafter: Drafter | None = None,
    observer: Observer | None = None,
) -> Iterator[None]:
    """While open, the engine's step has these parts in place of, or beside, its own."""
    step, stages = runner.step, runner.stages
    before = step.policy, step.drafter, stages.observers
    step.policy, step.drafter = policy or step.policy, drafter or step.drafter
    stages.observers += () if observer is None else (observer,)
    try:
        yield
    finally:
        step.policy, step.drafter, stages.observers = before
