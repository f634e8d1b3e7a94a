# SPDX-License-Identifier: Apache-2.0
"""Every way to decode, for 1 to 32 clients who ask again once they are answered.

    python benchmarks/closed_loop.py --pair smollm2 --temperature 0.8
    python benchmarks/closed_loop.py --pair demo --ramp

One process, an eager engine for each way, all of them loaded. At each number of clients the engines
take turns of as many tokens as plain decoding emits in a third of a second; between two turns an
engine stands still, with its requests in flight. Ratios are those of tokens per second within a
round of some turns each. Answers are of different lengths, so that no two clients stay in step. The
first round at a number of clients does not count. With `--ramp` the clients come and go instead, 1
to 32 and back, and every turn counts, a round at each number, in which some are still coming.

A pair is one of those that come along, or a folder with target/ and draft/.
"""

import argparse
import json
import random
import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from engines import engine, save

from vllm_eagle_pangu.demo import pair
from vllm_eagle_pangu.measure.engine import Engine
from vllm_eagle_pangu.measure.files import markdown
from vllm_eagle_pangu.measure.method import PLAIN, Method, adaptive, chain, scheduled_chain, tree
from vllm_eagle_pangu.measure.statistics import tau
from vllm_eagle_pangu.measure.turns import turns

BATCHES = (1, 2, 4, 8, 16, 32)
# An answer has half of so many tokens to one and a half.
TOKENS = 64
# Turns of each engine in a round; under a ramp a round has so many tokens for each client.
TURNS, RAMP = 8, 32
LARGEST = (4, 5, 16)
# Of a pair's sweep the chains, the schedule and the trees. Of "", whatever pair is not named.
SWEEPS: dict[str, list[Method]] = {
    "": [
        *map(chain, (1, 2)),
        scheduled_chain(((1, 4, 2), (5, 16, 1))),
        *map(tree, ((2, 2, 4), (3, 3, 8), LARGEST)),
    ],
    "smollm2": [
        *map(chain, (1, 2, 3)),
        scheduled_chain(((1, 4, 2), (5, 16, 1))),
        *map(tree, ((3, 3, 5), (3, 3, 8), LARGEST)),
    ],
    "demo": [
        *map(chain, (2, 4, 6)),
        scheduled_chain(((1, 4, 6), (5, 16, 2))),
        *map(tree, ((2, 3, 6), (3, 5, 12), LARGEST)),
    ],
}


class Loop:
    """An engine of a method and its `clients`, whose number may change."""

    def __init__(self, method: Method, llm: Engine, asked: Iterator[Any], clients: int) -> None:
        self.method, self.llm, self.clients = method, llm, clients
        self.served = llm.serve(asked, lambda: self.clients)

    def turn(self, tokens: float = float("inf"), seconds: float = float("inf")) -> dict[str, Any]:
        """What it took to emit so many tokens, or as many as it emits in so many seconds."""
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
    prompts: Sequence[Sequence[int]], temperature: float
) -> Iterator[tuple[Sequence[int], dict[str, Any]]]:
    """The same ones for every engine."""
    choose, seed = random.Random(0), 0
    while True:
        length = choose.randint(TOKENS // 2, TOKENS + TOKENS // 2)
        params = {"max_tokens": length, "ignore_eos": True, "temperature": temperature}
        yield choose.choice(prompts), params | ({"seed": seed} if temperature else {})
        seed += 1


def measure(
    loops: Sequence[Loop], batches: Sequence[int], seconds: float, rounds: int, warm: bool
) -> Iterator[dict[str, Any]]:
    """Of each number of clients and each method a row; the first of `loops` is plain decoding."""
    for batch in batches:
        for loop in loops:
            loop.clients = batch
        # Under a ramp nobody is served before the others, as then come the new clients' prompts.
        tokens = loops[0].turn(seconds=seconds)["tokens"] if warm else RAMP * batch
        took: dict[str, list[list[dict[str, Any]]]] = {loop.method.name: [] for loop in loops}
        for turn, _, order in turns(loops, range(TURNS), rounds + warm):
            for loop in order:
                of_loop = took[loop.method.name]
                if turn == len(of_loop):
                    of_loop.append([])
                of_loop[turn].append(loop.turn(tokens / TURNS))
        plain = [speed(turns_of) for turns_of in took[PLAIN.name][warm:]]
        for name, of_loop in took.items():
            speeds = [speed(turns_of) for turns_of in of_loop[warm:]]
            ratios = [one / other for one, other in zip(speeds, plain, strict=True)]
            mine = [turn for turns_of in of_loop[warm:] for turn in turns_of]
            drafts, accepted = (sum(turn[key] for turn in mine) for key in ("drafts", "accepted"))
            first = sorted(1e3 * each for turn in mine for each in turn["first"])
            yield {
                "clients": batch,
                "method": name,
                "tokens_per_s": statistics.median(speeds),
                "ratio": statistics.median(ratios),
                "least": min(ratios),
                "most": max(ratios),
                "tau": tau(drafts, accepted),
                "ttft_ms": statistics.median(first) if first else None,
                "ttft_p99_ms": first[int(0.99 * len(first))] if first else None,
                "answers": len(first),
            }


def speed(turns_of: Sequence[dict[str, Any]]) -> float:
    """Tokens per second of all these turns."""
    tokens, seconds = (sum(turn[key] for turn in turns_of) for key in ("tokens", "seconds"))
    return tokens / seconds


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Ratios: a line for each number of clients, a column for each method."""
    names = list(dict.fromkeys(row["method"] for row in rows))
    points = [rows[start : start + len(names)] for start in range(0, len(rows), len(names))]
    lines = [
        [str(point[0]["clients"]), *(f"{row['ratio']:.2f}" for row in point)] for point in points
    ]
    means = [
        statistics.geometric_mean(point[i]["ratio"] for point in points) for i in range(len(names))
    ]
    return markdown(["clients", *names], [*lines, ["mean", *(f"{mean:.2f}" for mean in means)]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pair", default=pair.DEMO, metavar="NAME")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--ramp", action="store_true")
    parser.add_argument("--seconds", type=float, default=2.5, help="of plain decoding's turns")
    parser.add_argument("--rounds", type=int, default=3, help="of turns, but for --ramp's one")
    parser.add_argument("--only", nargs="+", metavar="METHOD", help="beside plain decoding")
    parser.add_argument("--save", action="store_true", help="in benchmarks/results")
    arguments = parser.parse_args()
    from transformers import AutoTokenizer

    of = pair.find(arguments.pair)
    tokenizer = AutoTokenizer.from_pretrained(of.target)
    prompts = [tokenizer(text)["input_ids"] for text in of.read_prompts(80)]
    methods = [*SWEEPS.get(arguments.pair, SWEEPS[""]), adaptive(LARGEST)]
    if arguments.only:
        methods = [method for method in methods if method.name in arguments.only]
    batches = [*arguments.batches, *(arguments.batches[-2::-1] if arguments.ramp else ())]
    options = {"dtype": "bfloat16", "max_num_seqs": max(batches), "max_num_batched_tokens": 1152}
    options["kv_cache_memory_bytes"] = 2**28
    rows = []
    with ExitStack() as stack:
        loops = []
        for method in (PLAIN, *methods):
            llm = stack.enter_context(engine(method, of=of, **options))
            asked = requests(prompts, arguments.temperature)
            loops.append(Loop(method, llm, asked, batches[0]))
            stack.enter_context(closing(loops[-1].served))
        rounds = 1 if arguments.ramp else arguments.rounds
        for row in measure(loops, batches, arguments.seconds, rounds, warm=not arguments.ramp):
            print(json.dumps(row), flush=True)
            rows.append(row)
    print(table(rows))
    if arguments.save:
        kind = "ramp" if arguments.ramp else "closed-loop"
        name = f"{kind}-{Path(arguments.pair).name}-{arguments.temperature:g}"
        print(save(name, {"arguments": vars(arguments), "rows": rows}))


if __name__ == "__main__":
    main()
