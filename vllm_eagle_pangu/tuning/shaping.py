# SPDX-License-Identifier: Apache-2.0
"""Makes an engine draft another shape at every step."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from vllm_eagle_pangu.core.policy import FixedShapePolicy
from vllm_eagle_pangu.core.shape import TreeShape

Propose = Callable[..., Any]


@contextmanager
def reshaped(runner: Any, widths: Sequence[int], wrap: Callable[[Propose], Propose]) -> Iterator:
    """While open, `wrap(propose)` stands for the drafter's `propose` and may call `draft_next`.

    The head's scratch has W*D rows per request: made for the largest W of `widths`.
    """
    drafter, policy = runner.tree_drafter, runner.tree_policy
    width, propose = drafter.width, drafter.propose
    drafter.width = max(widths)
    drafter.allocate_scratch()
    drafter.propose = wrap(propose)
    try:
        yield
    finally:
        del drafter.propose
        drafter.width, runner.tree_policy = width, policy
        drafter.allocate_scratch()


def draft_next(runner: Any, shape: TreeShape) -> None:
    """The next trees have this shape, no deeper than the engine's."""
    assert shape.depth <= runner.tree_drafter.depth, shape
    assert shape.width <= runner.tree_drafter.width, shape
    runner.tree_policy = FixedShapePolicy(shape)
