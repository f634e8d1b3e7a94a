# SPDX-License-Identifier: Apache-2.0
"""What a policy is told of a step that is over."""

from collections.abc import Mapping
from dataclasses import dataclass

from vllm_eagle_pangu.core.policy import StepReport
from vllm_eagle_pangu.step.accept import Accepted


@dataclass(frozen=True)
class Unseen:
    """A plain step of a rest, `rows` tokens of `batch` requests: nothing is placed or accepted."""

    batch: int
    rows: int


def report(step: Accepted | Unseen, seconds: Mapping[str, float]) -> StepReport:
    """`seconds`: what each stage took."""
    if isinstance(step, Unseen):
        return StepReport(step.batch, step.rows, (), (), None, None, seconds)
    view, placed, trees = step.placed.view, step.placed.trees, step.trees
    scheduled = () if placed is None else placed.scheduled
    return StepReport(
        batch=view.batch_size,
        rows=view.rows,
        requests=[view.requests[tree.request] for tree in scheduled],
        shapes=[tree.pending.shape for tree in scheduled],
        tree=None if placed is None else placed.tree,
        paths=None if trees is None else trees.paths,
        seconds=seconds,
    )
