# SPDX-License-Identifier: Apache-2.0
"""How long the target's forward takes by its rows, asked at start-up of the engine itself."""

import statistics
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

# Seconds after which no further size is tried; what larger ones take is seen in service.
PATIENCE = 3.0
REPEATS = 3


@torch.inference_mode()
def forward_seconds(runner: "GPUModelRunner", most: int) -> Iterator[tuple[int, float]]:
    """Rows, 1 to `most` in powers of 2, and the median seconds of forward and logits.

    vLLM's own dummy run: attention, which has nothing to attend, is left out.
    """
    began, rows = time.perf_counter(), 1
    while rows <= most and time.perf_counter() - began < PATIENCE:
        # The first run of a size may be another kernel's first.
        yield rows, statistics.median([_run(runner, rows) for _ in range(1 + REPEATS)][1:])
        rows *= 2


def _run(runner: "GPUModelRunner", rows: int) -> float:
    """Of one forward; the dummy run also prepares, and runs the head."""
    times: list[float] = []
    hooks = (
        runner.model.register_forward_pre_hook(lambda *_: times.append(time.perf_counter())),
        runner.model.register_forward_hook(lambda *_: times.append(time.perf_counter())),
    )
    try:
        hidden, _ = runner._dummy_run(rows)
    finally:
        for hook in hooks:
            hook.remove()
    began = time.perf_counter()
    runner.model.compute_logits(hidden[:rows])
    return times[1] - times[0] + time.perf_counter() - began
