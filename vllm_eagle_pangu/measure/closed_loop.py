# SPDX-License-Identifier: Apache-2.0
"""Engines that take turns to serve clients who ask again once they are answered.

A turn has as many tokens as plain decoding emits in a part of a round; between two turns an engine
stands still, with its requests in flight. Ratios are those of tokens per second within a round.
Answers are of different lengths, so that no two clients stay in step.
"""

import random
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Protocol

from vllm_eagle_pangu.measure.engine import Engine
from vllm_eagle_pangu.measure.method import PLAIN, Method
from vllm_eagle_pangu.measure.statistics import latency, mean_of, tau
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
    ramp: bool = False,
    each: int | None = None,
    parts: int = TURNS,
) -> Iterator[dict[str, Any]]:
    """Of each number of clients and each method a row; the first of `loops` is plain decoding.

    `ratios` round by round: to plain decoding, or, where it is there more than once, to the
    geometric mean of all that are; of these themselves, to the first. `ratio` is their median,
    `mean` the geometric one, and `error` the standard error of their logarithms' mean, so a share
    of `mean`; None of one round. `drafts`: how many trees or chains a round took. `first_ms`: how
    long each first token took, by round.

    `ramp`: a round has all numbers of clients, one after the other, and counts; rows come with the
    last one's end. Otherwise the rounds of a number come one after the other, and its first one
    does not count. `seconds`: that plain decoding takes for its turns of a round, unless `each`
    says how many tokens a client gets in one. `parts`: turns of each in a round.
    """
    numbers, tokens = count(), dict[int, float]()
    total = rounds if ramp else rounds + 1
    for stretch in [batches] if ramp else [[batch] for batch in batches]:
        took = defaultdict[tuple[int, Method, int], list[dict[str, Any]]](list)
        places = [place for place in range(len(stretch)) for _ in range(parts)]
        for number, place, order in turns(loops, places, total):
            batch = stretch[place]
            for loop in loops:
                loop.clients = batch
            if batch not in tokens and each:
                tokens[batch] = batch * each
            elif batch not in tokens:
                # What is asked again a server would find in its cache.
                tokens[batch] = loops[0].turn(seconds=seconds, which=next(numbers))["tokens"]
            which = next(numbers)
            for loop in order:
                turn = loop.turn(tokens[batch] / parts, which=which)
                took[place, loop.method, number].append(turn)
        for place, batch in enumerate(stretch):
            yield from _rows(
                batch,
                {
                    loop.method: [took[place, loop.method, n] for n in range(total - rounds, total)]
                    for loop in loops
                },
            )


def _rows(
    batch: int, took: Mapping[Method, Sequence[Sequence[dict[str, Any]]]]
) -> Iterator[dict[str, Any]]:
    """`took`: of each method, plain decoding first, by round, its turns."""
    speeds = {method: [*map(speed, of_method)] for method, of_method in took.items()}
    plain = [of_method for method, of_method in speeds.items() if method.kind == PLAIN.kind]
    pooled = [*map(statistics.geometric_mean, zip(*plain, strict=True))]
    for method, of_method in took.items():
        beside = plain[0] if method.kind == PLAIN.kind else pooled
        ratios = [mine / other for mine, other in zip(speeds[method], beside, strict=True)]
        of_all = [turn for turns_of in of_method for turn in turns_of]
        drafts = [sum(turn["drafts"] for turn in turns_of) for turns_of in of_method]
        accepted = sum(turn["accepted"] for turn in of_all)
        waits = [[wait for turn in turns_of for wait in turn["first"]] for turns_of in of_method]
        first = [wait for of_round in waits for wait in of_round]
        yield {
            "clients": batch,
            "method": method.name,
            "tokens_per_s": statistics.median(speeds[method]),
            "ratio": statistics.median(ratios),
            "least": min(ratios),
            "most": max(ratios),
            **mean_of(ratios),
            "ratios": ratios,
            "drafts": drafts,
            "tau": tau(sum(drafts), accepted),
            **latency("ttft", first),
            "answers": len(first),
            "first_ms": [[round(1e3 * wait, 1) for wait in of_round] for of_round in waits],
        }


def speed(turns_of: Sequence[dict[str, Any]]) -> float:
    """Tokens per second of all these turns."""
    tokens, seconds = (sum(turn[key] for turn in turns_of) for key in ("tokens", "seconds"))
    return tokens / seconds
