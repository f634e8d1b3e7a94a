# SPDX-License-Identifier: Apache-2.0
"""Engines that take turns to serve clients who ask again once they are answered.

A turn has as many tokens as plain decoding emits in a part of a round; between two turns an engine
stands still, with its requests in flight. Ratios are those of tokens per second within a round.
Answers are of different lengths, so that no two clients stay in step.
"""

import random
import statistics
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, Protocol

from vllm_eagle_pangu.measure.engine import Engine
from vllm_eagle_pangu.measure.method import PLAIN, Method
from vllm_eagle_pangu.measure.statistics import latency, tau
from vllm_eagle_pangu.measure.turns import turns

# Turns of each engine in a round.
TURNS = 8


class TakesTurns(Protocol):
    """Serves `clients`, whose number may change, by a method."""

    method: Method
    clients: int

    def turn(
        self, tokens: float = float("inf"), seconds: float = float("inf"), which: int = 0
    ) -> dict[str, Any]:
        """What it took to emit so many tokens, or as many as it emits in so many seconds:
        `tokens`, `seconds`, of each `first` token its seconds, `drafts`, `accepted`.

        `which` turn it is: clients who come with one ask the same in everybody's.
        """
        ...


class Loop:
    """An engine of a method and its `clients`, whose number may change."""

    def __init__(self, method: Method, llm: Engine, asked: Iterator[Any], clients: int) -> None:
        self.method, self.llm, self.clients = method, llm, clients
        self.served = llm.serve(asked, lambda: self.clients)

    def turn(
        self, tokens: float = float("inf"), seconds: float = float("inf"), which: int = 0
    ) -> dict[str, Any]:
        """See `TakesTurns`; its clients stay from turn to turn."""
        before, emitted, took, first = dict(self.llm.counts), 0, 0.0, list[float]()
        if hasattr(self.llm.runner, "stages"):
            self.llm.runner.stages.resume()
        while emitted < tokens and took < seconds:
            step = next(self.served)
            emitted, took = emitted + step.tokens, took + step.seconds
            first += step.first
        counts = {name: count - before[name] for name, count in self.llm.counts.items()}
        return {"tokens": emitted, "seconds": took, "first": first, **counts}


def requests(
    prompts: Sequence[Sequence[int]],
    tokens: int,
    temperature: float,
    which: int = 0,
    ignore_eos: bool = True,
) -> Iterator[tuple[Sequence[int], dict[str, Any]]]:
    """Prompts with their parameters, without end, and the same ones every time for each `which`.

    Answers have half of so many `tokens` to one and a half; less where the target ends them and
    that is not ignored.
    """
    choose = random.Random(which)
    for seed in count(which << 16):
        length = choose.randint(max(1, tokens // 2), tokens + tokens // 2)
        params = {"max_tokens": length, "ignore_eos": ignore_eos, "temperature": temperature}
        yield choose.choice(prompts), params | ({"seed": seed} if temperature else {})


def measure(
    loops: Sequence[TakesTurns],
    batches: Sequence[int],
    seconds: float,
    rounds: int,
    warm: bool,
    each: int | None = None,
    parts: int = TURNS,
) -> Iterator[dict[str, Any]]:
    """Of each number of clients and each method a row; the first of `loops` is plain decoding.

    `ratio` is the median of `ratios`, round by round, `drafts` how many trees or chains it took.

    `seconds`: that plain decoding takes for its turns of a round, unless `each` says how many
    tokens a client gets in one. `warm`: a round more comes first, which does not count; without it
    the clients come and go while it is measured. `parts`: turns of each in a round.
    """
    numbers = count()
    for batch in batches:
        for loop in loops:
            loop.clients = batch
        if each:
            tokens = batch * each
        else:
            # What is asked again a server would find in its cache.
            tokens = loops[0].turn(seconds=seconds, which=next(numbers))["tokens"]
        took: dict[str, list[list[dict[str, Any]]]] = {
            loop.method.name: [[] for _ in range(rounds + warm)] for loop in loops
        }
        for number, _, order in turns(loops, range(parts), rounds + warm):
            which = next(numbers)
            for loop in order:
                took[loop.method.name][number].append(loop.turn(tokens / parts, which=which))
        plain = [speed(turns_of) for turns_of in took[PLAIN.name][warm:]]
        for name, of_loop in took.items():
            speeds = [speed(turns_of) for turns_of in of_loop[warm:]]
            ratios = [one / other for one, other in zip(speeds, plain, strict=True)]
            mine = [turn for turns_of in of_loop[warm:] for turn in turns_of]
            drafts = [sum(turn["drafts"] for turn in turns_of) for turns_of in of_loop[warm:]]
            accepted = sum(turn["accepted"] for turn in mine)
            first = [wait for turn in mine for wait in turn["first"]]
            yield {
                "clients": batch,
                "method": name,
                "tokens_per_s": statistics.median(speeds),
                "ratio": statistics.median(ratios),
                "least": min(ratios),
                "most": max(ratios),
                "ratios": ratios,
                "drafts": drafts,
                "tau": tau(sum(drafts), accepted),
                **latency("ttft", first),
                "answers": len(first),
            }


def speed(turns_of: Sequence[dict[str, Any]]) -> float:
    """Tokens per second of all these turns."""
    tokens, seconds = (sum(turn[key] for turn in turns_of) for key in ("tokens", "seconds"))
    return tokens / seconds
