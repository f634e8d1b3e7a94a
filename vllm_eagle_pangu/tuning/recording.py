# SPDX-License-Identifier: Apache-2.0
"""Plain decoding in which trees are grown at every token, kept for study, and never verified.

The drafter is asked once for every width, for a tree that holds all its candidates; the scheduler
is given none of them, so the next step decodes one token and the trees stand at every position.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.tuning.acceptance import Growth, Recording
from vllm_eagle_pangu.tuning.engines import Engine
from vllm_eagle_pangu.tuning.prompts import Prompt
from vllm_eagle_pangu.tuning.shaping import Propose, draft_next, reshaped

# Requests at a time: neither time nor accuracy depends on the batch sizes that are tuned for.
BATCH_SIZE = 16
SECONDS = 60.0


def record(
    engine: Engine,
    prompts: Sequence[Prompt],
    widths: Sequence[int],
    depth: int,
    tokens: int,
    temperature: float,
    seconds: float = SECONDS,
) -> Recording:
    """Decode the prompts in batches, as far as steps among `tokens` tokens may look ahead.

    No new batch after `seconds`.
    `engine` drafts with this plugin, at least `depth` deep and as wide as the widest of `widths`.
    """
    recording = Recording(depth)
    deadline = time.monotonic() + seconds
    length = tokens + depth
    # Nothing is drafted behind a request's last two tokens.
    asked = length + 2
    for start in range(0, len(prompts), BATCH_SIZE):
        with _grown_only(engine.runner, widths, depth) as (texts, growths):
            engine.generate(
                prompts[start : start + BATCH_SIZE], temperature=temperature, max_tokens=asked
            )
        for request, text in texts.items():
            # vLLM's ids begin anew with every call in some versions.
            key = f"{start}/{request}"
            recording.texts[key] = text
            if len(text) < length:
                recording.whole.add(key)
            for width in widths:
                needed = [
                    growth.needed(text[k + 1 :], depth)
                    for k, growth in enumerate(growths[width][request])
                ]
                recording.needed.setdefault(width, {})[key] = np.stack(needed)
        if time.monotonic() > deadline:
            break
    return recording


@contextmanager
def _grown_only(
    runner: Any, widths: Sequence[int], depth: int
) -> Iterator[tuple[dict[str, list[int]], dict[int, dict[str, list[Growth]]]]]:
    """While open, fills the emitted tokens by request, and by width and request their growths."""
    texts: dict[str, list[int]] = {}
    growths: dict[int, dict[str, list[Growth]]] = {width: {} for width in widths}

    def grow_all(propose: Propose) -> Propose:
        def propose_none(*args: Any, **kwargs: Any) -> None:
            drafted = None
            for width in widths:
                capacity = width + (depth - 1) * width * width
                draft_next(runner, TreeShape(width, depth, capacity))
                drafted = propose(*args, **kwargs)
                if drafted is None:
                    return
                for request, growth in _by_request(runner, drafted):
                    growths[width].setdefault(request, []).append(growth)
            for request, growth in _by_request(runner, drafted):
                texts.setdefault(request, []).append(int(growth.tokens[0]))

        return propose_none

    with reshaped(runner, widths, grow_all):
        yield texts, growths


def _by_request(runner: Any, drafted: Any) -> list[tuple[str, Growth]]:
    ids = [runner.input_batch.req_ids[request] for request in drafted.requests]
    return list(zip(ids, Growth.of(drafted.tree), strict=True))
