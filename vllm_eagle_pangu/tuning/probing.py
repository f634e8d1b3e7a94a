# SPDX-License-Identifier: Apache-2.0
"""What drafting and verifying cost, from an engine that drafts another shape at every step.

A step's time falls into the drafter's, which depends on W and D, and the rest, which depends on M:
scheduling, the target's forward over M+1 rows, sampling, walk and commit. Shapes take turns step by
step, so that what else the machine does falls on all of them alike.
"""

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.tuning.engines import Engine
from vllm_eagle_pangu.tuning.prompts import Prompt, pieces
from vllm_eagle_pangu.tuning.shaping import Propose, draft_next, reshaped

SAMPLES = 24
SECONDS = 30.0
# A budget seen less often is not judged.
MIN_SAMPLES = 3
DEPTHS = (2, 5, 10)


@dataclass
class Probes:
    """Milliseconds of steps with a full batch: of the drafter by (W, D), of the rest by M."""

    batch_size: int
    draft_ms: dict[tuple[int, int], list[float]] = field(default_factory=dict)
    verify_ms: dict[int, list[float]] = field(default_factory=dict)

    @classmethod
    def empty(
        cls,
        batch_size: int,
        widths: Sequence[int],
        depths: Sequence[int],
        budgets: Sequence[int],
    ) -> "Probes":
        """Nothing measured yet."""
        return cls(
            batch_size,
            {(width, depth): [] for width in widths for depth in depths},
            {nodes: [] for nodes in budgets},
        )

    def next_shape(self) -> TreeShape:
        """The least measured (W, D), with the least measured M that it can hold."""
        width, depth = min(self.draft_ms, key=lambda key: len(self.draft_ms[key]))
        capacity = width + (depth - 1) * width * width
        fitting = [nodes for nodes in self.verify_ms if nodes <= capacity]
        nodes = min(fitting, key=lambda nodes: len(self.verify_ms[nodes]))
        return TreeShape(width, depth, nodes)

    def enough(self) -> bool:
        cells = [*self.draft_ms.values(), *self.verify_ms.values()]
        return all(len(times) >= SAMPLES for times in cells)

    def verify(self) -> dict[int, float]:
        """Median milliseconds by M, of those measured often enough."""
        return _medians(self.verify_ms)

    def draft(self) -> dict[tuple[int, int], float]:
        """Median milliseconds by (W, D), of those measured often enough."""
        return _medians(self.draft_ms)


def _medians(cells: dict[Any, list[float]]) -> dict[Any, float]:
    return {
        key: statistics.median(times) for key, times in cells.items() if len(times) >= MIN_SAMPLES
    }


def probe(
    engine: Engine,
    prompts: Sequence[Prompt],
    empty: Probes,
    tokens: int,
    temperature: float,
    seconds: float = SECONDS,
) -> Probes:
    """Fill `empty` while decoding the prompts over and over; stops after `seconds`."""
    batch = empty.batch_size
    deadline = time.monotonic() + seconds
    params = {"temperature": temperature, "max_tokens": tokens, "ignore_eos": True}
    # As many calls as it takes: every step measures one cell, prefills and the batch's end none.
    chunks = pieces(prompts, 2 * batch, len(prompts))
    engine.generate(chunks[0][:batch], **{**params, "max_tokens": 8})
    with _probed(engine.runner, empty):
        for turn in count():
            engine.generate(chunks[turn % len(chunks)], **params)
            if empty.enough() or time.monotonic() > deadline:
                return empty
    raise AssertionError("unreachable")


@contextmanager
def _probed(runner: Any, probes: Probes) -> Iterator[None]:
    """While open, every step drafts `probes.next_shape()` and its times are kept."""
    shape: TreeShape | None = None
    end = 0.0

    def timed(propose: Propose) -> Propose:
        def propose_next(*args: Any, **kwargs: Any) -> Any:
            nonlocal shape, end
            begin = _now(runner)
            full = _all_verified(runner, shape, probes.batch_size)
            if full and shape is not None:
                probes.verify_ms[shape.nodes].append(begin - end)
            shape = probes.next_shape()
            draft_next(runner, shape)
            drafted = propose(*args, **kwargs)
            end = _now(runner)
            if full and drafted is not None and len(drafted.requests) == probes.batch_size:
                probes.draft_ms[shape.width, shape.depth].append(end - begin)
            return drafted

        return propose_next

    widths = sorted({width for width, _ in probes.draft_ms})
    with reshaped(runner, widths, timed):
        yield


def _all_verified(runner: Any, shape: TreeShape | None, batch_size: int) -> bool:
    """Whether this step verified a whole tree of `shape` for each of `batch_size` requests."""
    step = runner.tree_step
    if step is None or shape is None or not step.covers_batch:
        return False
    return list(step.host_counts) == [shape.rows] * batch_size


def _now(runner: Any) -> float:
    """Milliseconds, with nothing left to do on the device."""
    if runner.device.type != "cpu":
        import torch

        torch.accelerator.synchronize()
    return time.perf_counter() * 1e3
