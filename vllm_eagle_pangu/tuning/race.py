# SPDX-License-Identifier: Apache-2.0
"""Methods in real engines, side by side on the same prompts."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vllm_eagle_pangu.measure.engine import Engine
from vllm_eagle_pangu.measure.method import Method
from vllm_eagle_pangu.measure.prompts import pieces, spread
from vllm_eagle_pangu.measure.statistics import rate, tau
from vllm_eagle_pangu.measure.turns import turns
from vllm_eagle_pangu.tuning.engines import Engines
from vllm_eagle_pangu.tuning.settings import Prompt

ROUNDS = 3
# Per method, all rounds together; slow targets are run on fewer prompts.
SECONDS = 13.0
MIN_PIECES = 2
# At batch size 1; a method's tau over fewer is luck of these prompts.
PROMPTS = 20
WARM_UP_TOKENS = 16

Say = Callable[[str], None]


@dataclass
class Times:
    """Of one method: per piece of the prompts, seconds and tokens of each round."""

    seconds: list[list[float]] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)
    drafts: int = 0
    accepted: int = 0

    @property
    def tokens_per_s(self) -> float:
        """Over all pieces, each at the median of its rounds; prefill included."""
        return rate(map(statistics.median, self.tokens), self.seconds)

    @property
    def range_per_s(self) -> tuple[float, float]:
        """The slowest and the fastest round."""
        tokens, seconds = (np.sum(each, axis=0) for each in (self.tokens, self.seconds))
        return float(min(tokens / seconds)), float(max(tokens / seconds))

    @property
    def tau(self) -> float | None:
        """Tokens emitted per verified draft; None without drafts."""
        return tau(self.drafts, self.accepted)


def race(
    engines: Engines,
    methods: Sequence[Method],
    prompts: Sequence[Prompt],
    batch_size: int,
    say: Say,
    most: int = PROMPTS,
) -> dict[Method, Times]:
    """Every method on the same prompts, piece by piece in turn.

    As many engines as memory allows are alive at a time, and what else the machine does falls on
    all of them; where not all fit, groups follow each other. Methods of vLLM's whose engine does
    not start are left out, and said so.
    """
    together = engines.beside_each_other()
    groups = [methods[start : start + together] for start in range(0, len(methods), together)]
    work = _pieces(prompts, batch_size, most)
    settings = engines.settings
    params = {"temperature": settings.temperature, "max_tokens": settings.tokens}
    results: dict[Method, Times] = {}
    for group in groups:
        with ExitStack() as stack:
            each = {method: _opened(stack, engines, method, batch_size, say) for method in group}
            opened = {method: engine for method, engine in each.items() if engine is not None}
            results |= _run(opened, params, work) if opened else {}
        # The others are run on as much as the first had time for.
        work = work[: max(len(times.seconds) for times in results.values())]
    return results


def _pieces(prompts: Sequence[Prompt], batch_size: int, most: int) -> list[list[Prompt]]:
    """`most` prompts apart at batch size 1; beyond, enough to keep the batch full for a while."""
    if batch_size == 1:
        return [[prompt] for prompt in spread(prompts, most, 0)]
    size = 2 * batch_size
    return pieces(prompts, size, max(1, len(prompts) // size))


def _opened(
    stack: ExitStack, engines: Engines, method: Method, batch_size: int, say: Say
) -> Engine | None:
    speculative = method.speculative_config(engines.settings.head)
    try:
        return stack.enter_context(engines.open(speculative, batch_size))
    except Exception as error:
        # Not every target that a tree runs on is one that vLLM's eagle3 runs on.
        if method.kind != "chain":
            raise
        say(f"{method.title}: left out, vLLM does not start it: {error}")
        return None


def _run(
    opened: Mapping[Method, Engine],
    params: dict[str, Any],
    work: list[list[Prompt]],
) -> dict[Method, Times]:
    results = {}
    for method, engine in opened.items():
        engine.generate(work[0], **{**params, "max_tokens": WARM_UP_TOKENS})
        warm = engine.counts
        results[method] = Times(drafts=-warm["drafts"], accepted=-warm["accepted"])
    places = list(range(len(work)))
    for turn, index, order in turns(list(opened), places, ROUNDS):
        for method in order:
            times = results[method]
            if turn == 0:
                times.seconds.append([])
                times.tokens.append([])
            begin = time.perf_counter()
            outputs = opened[method].generate(work[index], **params)
            times.seconds[index].append(time.perf_counter() - begin)
            times.tokens[index].append(sum(map(len, outputs)))
        if turn == 0 and index + 1 >= MIN_PIECES:
            spent = sum(sum(map(sum, times.seconds)) for times in results.values())
            if spent * ROUNDS * (index + 2) / (index + 1) > SECONDS * len(opened):
                del places[index + 1 :]
    for method, engine in opened.items():
        results[method].drafts += engine.counts["drafts"]
        results[method].accepted += engine.counts["accepted"]
    return results
