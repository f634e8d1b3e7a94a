# SPDX-License-Identifier: Apache-2.0
"""Which tree to draft for each request of a step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from vllm_eagle_pangu.core.paths import AcceptedPaths
from vllm_eagle_pangu.core.request import RequestView
from vllm_eagle_pangu.core.shape import TreeShape


@dataclass(frozen=True)
class StepReport:
    """What a step did: T trees verified, of `requests: [T]`, drafted in `shapes: [T]`.

    `paths`: what was accepted of each. `seconds` by stage: see `step.stages.Stages`.
    """

    requests: Sequence[RequestView]
    shapes: Sequence[TreeShape]
    paths: AcceptedPaths
    seconds: Mapping[str, float]

    def accepted(self) -> list[int]:
        """`[T]`: nodes accepted of each tree. Waits for the device."""
        return self.paths.length.tolist()


class TreePolicy(Protocol):
    """Chooses shapes, none larger than the engine's configured one."""

    def plan(self, requests: Sequence[RequestView]) -> Sequence[TreeShape | None]:
        """A shape for each of the requests that can be drafted for; None for no tree."""
        ...

    def observe(self, report: StepReport) -> None:
        """Told at the end of every step that verified trees."""
        ...


@dataclass(frozen=True)
class FixedShape:
    """The same shape for every request of every step."""

    tree: TreeShape

    def plan(self, requests: Sequence[RequestView]) -> Sequence[TreeShape | None]:
        """See `TreePolicy`."""
        return [self.tree] * len(requests)

    def observe(self, report: StepReport) -> None:
        """See `TreePolicy`."""
