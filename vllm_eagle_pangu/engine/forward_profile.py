# SPDX-License-Identifier: Apache-2.0
"""How long the target's forward takes by its rows, asked at start-up of the engine itself."""

import math
import time
from itertools import cycle
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

# Seconds after which no further forward is tried.
PATIENCE = 2.0


@torch.inference_mode()
def forward_seconds(runner: "GPUModelRunner", most: int) -> dict[int, float]:
    """By rows, 1 to `most` in powers of 4, the least seconds of a forward with its logits.

    vLLM's own dummy run: attention, which has nothing to attend, is left out.
    """
    until = time.perf_counter() + PATIENCE
    sizes = [4**power for power in range(most.bit_length()) if 4**power <= most]
    least: dict[int, float] = {}
    # In turns, as what else the machine does comes and goes; the first run of a size is slow.
    for rows in cycle(sizes):
        least[rows] = min(_run(runner, rows), least.get(rows, math.inf))
        if time.perf_counter() > until:
            return least
    return least


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
