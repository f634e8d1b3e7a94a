# SPDX-License-Identifier: Apache-2.0
"""Plain decoding in which trees are grown at every token, kept for study, and never verified.

The drafter is asked once for every width, for a tree that holds all its candidates; the scheduler
is given none of them, so the next step decodes one token and the trees stand at every position.
"""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.measure.engine import Engine
from vllm_eagle_pangu.step.accept import Accepted
from vllm_eagle_pangu.step.drafter import Drafter
from vllm_eagle_pangu.step.grow import Deepen, Drafted
from vllm_eagle_pangu.step.head import TargetStates
from vllm_eagle_pangu.tuning.acceptance import Growth, Recording
from vllm_eagle_pangu.tuning.prompts import Prompt

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
        drafter = GrowOnly(engine.runner.step.drafter, widths, depth)
        with engine.watched(drafter=drafter):
            engine.generate(
                prompts[start : start + BATCH_SIZE], temperature=temperature, max_tokens=asked
            )
        for request, text in drafter.texts.items():
            # vLLM's ids begin anew with every call in some versions.
            key = f"{start}/{request}"
            recording.texts[key] = text
            if len(text) < length:
                recording.whole.add(key)
            for width in widths:
                needed = [
                    growth.needed(text[k + 1 :], depth)
                    for k, growth in enumerate(drafter.growths[width][request])
                ]
                recording.needed.setdefault(width, {})[key] = np.stack(needed)
        if time.monotonic() > deadline:
            break
    return recording


class GrowOnly:
    """A `Drafter`: grows a tree of all candidates for every width, and hands out none.

    `growths`: by width and request; `texts`: by request, the roots, which are the emitted tokens.
    """

    def __init__(self, drafter: Drafter, widths: Sequence[int], depth: int) -> None:
        self.drafter = drafter
        self.shapes = [TreeShape(w, depth, w + (depth - 1) * w * w) for w in widths]
        self.texts: dict[str, list[int]] = {}
        self.growths: dict[int, dict[str, list[Growth]]] = {width: {} for width in widths}
        self._ids: list[str] = []

    def requests(self, accepted: Accepted) -> Sequence[int]:
        """See `Drafter`."""
        return self.drafter.requests(accepted)

    def extend(self, accepted: Accepted, target: TargetStates, requests: Sequence[int]) -> Any:
        """See `Drafter`."""
        self._ids = [accepted.placed.view.requests[request].id for request in requests]
        return self.drafter.extend(accepted, target, requests)

    def grow(self, state: Any, plan: Sequence[TreeShape], deepen: Deepen) -> Drafted:
        """See `Drafter`."""
        ids = self._ids
        for shape in self.shapes:
            (trees,) = self.drafter.grow(state, [shape] * len(plan), deepen).trees
            grown = Growth.of(trees.tree)
            for request, growth in zip(ids, grown, strict=True):
                self.growths[shape.width].setdefault(request, []).append(growth)
        for request, growth in zip(ids, grown, strict=True):
            self.texts.setdefault(request, []).append(int(growth.tokens[0]))
        return Drafted()
