# SPDX-License-Identifier: Apache-2.0
"""A machine that becomes slow while it serves: a loop is busy on one of its cores for a while.

    python benchmarks/busy_core.py --pair demo --clients 1 4

Two engines, plain decoding and adaptive trees, which learnt what steps take while nothing else ran,
take short turns: first so, then beside the loop, then without it again. `steps`: of adaptive trees
in such a part till their speed over plain decoding's is, in the next turns together, 0.97 of what
it is in the part's second half; `first`: in its first turns, and `least`: in the slowest ones.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from engines import DTYPES, engine, prompts_of, save

from vllm_eagle_pangu.demo import pair
from vllm_eagle_pangu.measure.closed_loop import Loop, requests
from vllm_eagle_pangu.measure.engine import Engine, Served
from vllm_eagle_pangu.measure.files import markdown
from vllm_eagle_pangu.measure.method import PLAIN, adaptive

PARTS = {"quiet": False, "busy": True, "quiet again": False}
TOKENS = 64
# Turns whose speed is told together: two threads that wait for each other differ by chance.
TOGETHER = 6
ENOUGH = 0.97
KEYS = ("tokens", "seconds")


@contextmanager
def busy(core: int) -> Iterator[None]:
    """A loop on this core, as long as it lasts."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as loop:
        try:
            os.sched_setaffinity(loop.pid, {core})
            yield
        finally:
            loop.kill()


def counted(served: Iterator[Served], llm: Engine) -> Iterator[Served]:
    """The same steps, whose number is one of the engine's counts."""
    for step in served:
        llm.counts["steps"] += 1
        yield step


def part(plain: Loop, trees: Loop, turns: int, seconds: float) -> dict[str, float]:
    """Turns of both, one behind the other."""
    tokens, took, steps = np.zeros((2, turns)), np.zeros((2, turns)), np.zeros(turns)
    for turn in range(turns):
        found = [plain.turn(seconds=seconds), trees.turn(seconds=seconds)]
        tokens[:, turn], took[:, turn] = ([each[key] for each in found] for key in KEYS)
        steps[turn] = found[1]["steps"]

    def ratio(begin: int, end: int) -> float:
        speed = tokens[:, begin:end].sum(axis=1) / took[:, begin:end].sum(axis=1)
        return float(speed[1] / speed[0])

    end = ratio(turns // 2, turns)
    each = [ratio(turn, turn + TOGETHER) for turn in range(turns - TOGETHER + 1)]
    soon = next((turn for turn, here in enumerate(each) if here >= ENOUGH * end), turns)
    speed = (tokens.sum(axis=1) / took.sum(axis=1)).tolist()
    return {
        "plain tokens/s": speed[0],
        "adaptive tokens/s": speed[1],
        "in the end": end,
        "first": each[0],
        "least": min(each),
        "steps": float(steps[:soon].sum()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pair", default=pair.DEMO, metavar="NAME")
    parser.add_argument("--dtype", default="bfloat16", choices=DTYPES)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--turns", type=int, default=60, help="of either engine in a part")
    parser.add_argument("--seconds", type=float, default=0.25, help="of a turn")
    parser.add_argument("--save", action="store_true", help="in benchmarks/results")
    arguments = parser.parse_args()
    of, core = pair.find(arguments.pair), max(os.sched_getaffinity(0))
    rows: list[dict[str, Any]] = []
    options = {"dtype": arguments.dtype, "kv_cache_memory_bytes": 2**29}
    with ExitStack() as stack:
        loops = []
        for method in (PLAIN, adaptive((4, 5, 16))):
            llm = stack.enter_context(engine(method, of=of, **options))
            llm.counts["steps"] = 0
            loop = Loop(method, llm, requests(prompts_of(of, 80), TOKENS, 0.0), 1)
            loop.served = stack.enter_context(closing(counted(loop.served, llm)))
            loops.append(loop)
        for clients in arguments.clients:
            for loop in loops:
                loop.clients = clients
            part(*loops, arguments.turns, arguments.seconds)
            for name, is_busy in PARTS.items():
                with busy(core) if is_busy else ExitStack():
                    found = part(*loops, arguments.turns, arguments.seconds)
                rows.append({"clients": clients, "part": name, **found})
                print(json.dumps(rows[-1]), flush=True)
    lines = [[v if isinstance(v, str) else f"{v:.3g}" for v in row.values()] for row in rows]
    print(markdown(list(rows[0]), lines))
    if arguments.save:
        results = {"arguments": vars(arguments), "rows": rows}
        print(save(f"busy-core-{Path(arguments.pair).name}", results))


if __name__ == "__main__":
    main()
