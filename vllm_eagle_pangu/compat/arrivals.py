# SPDX-License-Identifier: Apache-2.0
"""Workers learn of requests that came while they ran a step.

Why: where clients have a step's tokens before the next trees are drafted, whoever came meanwhile
waits for these, and vLLM's scheduler sees nobody before the next step is made.
How: behind a step the engine's core says how many there are in its queue, if any.
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
    """Have this process's cores say so to workers in it, by their `note_arrivals`. Idempotent."""
    EngineCoreProc.post_step = patched(EngineCoreProc.post_step, _post_step)


def _post_step(original: Callable, self: EngineCoreProc, model_executed: bool) -> None:
    arrived = _arrived(self.input_queue)
    if arrived and model_executed:
        self.collective_rpc("note_arrivals", None, (arrived,))
    original(self, model_executed)


def _arrived(queue: Queue) -> int:
    # Copied at once: another thread fills it.
    queued = tuple(queue.queue) if queue.queue else ()
    return sum(kind is EngineCoreRequestType.ADD for kind, _ in queued)
