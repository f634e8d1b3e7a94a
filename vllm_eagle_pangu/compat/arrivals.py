# SPDX-License-Identifier: Apache-2.0
"""Workers learn of requests that came while they ran a step.

Why: where clients have a step's tokens before the next trees are drafted, whoever came meanwhile
waits for these, and vLLM's scheduler sees nobody before the next step is made.
How: behind a step the engine's core says how many are in its queue for whom there is room, if any.
Upstream: EngineCoreProc.post_step, input_queue, vllm/v1/engine/core.py.
Remove when: vLLM hands new requests to its scheduler, or drafts, once a step's tokens are sent and
new requests are taken in.
"""

from collections.abc import Callable
from queue import Queue

from vllm.v1.engine import EngineCoreRequestType
from vllm.v1.engine.core import EngineCoreProc

from vllm_eagle_pangu.compat.lent import patched


def install() -> None:
    """Have the core in this process say so to its workers, by `note_arrivals`, where its scheduler
    knows for how many there is room, by `arrived`. Idempotent."""
    EngineCoreProc.post_step = patched(EngineCoreProc.post_step, _post_step)


def _post_step(original: Callable, self: EngineCoreProc, model_executed: bool) -> None:
    # Another core in this process may have another scheduler.
    if model_executed and hasattr(self.scheduler, "arrived"):
        arrived = self.scheduler.arrived(_queued(self.input_queue))
        if arrived:
            self.collective_rpc("note_arrivals", None, (arrived,))
    original(self, model_executed)


def _queued(queue: Queue) -> int:
    # Copied at once: another thread fills it.
    entries = tuple(queue.queue) if queue.queue else ()
    return sum(kind is EngineCoreRequestType.ADD for kind, _ in entries)
