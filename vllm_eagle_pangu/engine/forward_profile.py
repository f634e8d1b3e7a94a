# SPDX-License-Identifier: Apache-2.0
"""How long the target's forward takes by its rows, asked at start-up of the engine itself."""

import math
import time
from collections.abc import Iterable, Iterator
from itertools import cycle
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

# Seconds after which no further forward is tried.
PATIENCE = 2.0


@torch.inference_mode()
def run_once(runner: "GPUModelRunner", sizes: Iterable[int]) -> None:
    """A forward of each of so many rows, as far as time allows.

    On a CPU the first one of a number of rows takes several times as long: nobody waits for it yet.
    """
    for _ in _run_each(runner, sizes):
        pass


@torch.inference_mode()
def forward_seconds(runner: "GPUModelRunner", most: int) -> dict[int, float]:
    """By rows, 1 to `most` in powers of 4, the least seconds of a forward with its logits.

    vLLM's own dummy run: attention, which has nothing to attend, is left out.
    """
    sizes = [4**power for power in range(most.bit_length()) if 4**power <= most]
    least: dict[int, float] = {}
    # In turns, as what else the machine does comes and goes.
    for rows, seconds in _run_each(runner, cycle(sizes)):
        least[rows] = min(seconds, least.get(rows, math.inf))
    return least


def _run_each(runner: "GPUModelRunner", sizes: Iterable[int]) -> Iterator[tuple[int, float]]:
    """Rows and seconds of forwards, one at least, till patience is at an end."""
    until = time.perf_counter() + PATIENCE
    for rows in sizes:
        yield rows, _run(runner, rows)
        if time.perf_counter() > until:
            return


def _run(runner: "GPUModelRunner", rows: int) -> float:
    """Of one forward; the dummy run also prepares, and runs the head."""
    times: list[float] = []

    def note(*_: object) -> None:
        times.append(time.perf_counter())

    with runner.model.register_forward_pre_hook(note), runner.model.register_forward_hook(note):
        hidden, _ = runner._dummy_run(rows)
    began = time.perf_counter()
    runner.model.compute_logits(hidden[:rows])
    return times[1] - times[0] + time.perf_counter() - began
