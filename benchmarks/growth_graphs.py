# SPDX-License-Identifier: Apache-2.0
"""What CUDA graphs bring to the growth of trees: one engine with them and without, in turns.

    python benchmarks/growth_graphs.py --clients 1 8  # on a GPU

Beside it plain decoding and adaptive trees, each an engine of the demo pair in this process, on the
same prompts, all of them at once. Tokens per second and milliseconds a step are medians of rounds,
of which the first does not count; ratios are to plain decoding in the same round. Of a step's
stages what the host takes, in the last round: it does not wait for the GPU but at the end.
"""

import argparse
import time
from collections import defaultdict
from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Any, ClassVar

from engines import engine, prompts_of, save

from vllm_eagle_pangu.core.policy import FixedShape, StepReport
from vllm_eagle_pangu.demo import pair
from vllm_eagle_pangu.measure.engine import Engine
from vllm_eagle_pangu.measure.method import PLAIN, adaptive, tree
from vllm_eagle_pangu.step.grow import GrowShape, grow_shape

METHODS = (PLAIN, tree((3, 5, 12)), adaptive((4, 5, 16)))
EAGER = "tree-3-5-12, grown without graphs"


class Watched(FixedShape):
    """Sums up what stages take."""

    seconds: ClassVar[defaultdict[str, float]] = defaultdict(float)

    def observe(self, report: StepReport) -> None:
        """See `TreePolicy`."""
        for stage, seconds in report.seconds.items():
            self.seconds[stage] += seconds


def turn(llm: Engine, prompts: list[list[int]], tokens: int) -> dict[str, Any]:
    """Answers are on the host when they are told, so its clock tells what they took."""
    before, began = llm.counts["drafts"], time.perf_counter()
    answers = llm.generate(prompts, max_tokens=tokens, ignore_eos=True)
    seconds, drafts = time.perf_counter() - began, llm.counts["drafts"] - before
    return {"seconds": seconds, "drafts": drafts, "answers": answers}


def measure(
    engines: dict[str, Engine], clients: int, rounds: int, tokens: int
) -> list[dict[str, Any]]:
    of_trees = engines[METHODS[1].name]
    graphs: GrowShape = of_trees.runner.step.drafter.grow_one
    prompts = prompts_of(pair.find(), clients)
    ways = {name: partial(turn, llm, prompts, tokens) for name, llm in engines.items()}
    ways[EAGER] = ways[METHODS[1].name]
    took: dict[str, list[dict[str, Any]]] = {name: [] for name in ways}
    stages = {}
    for number in range(1 + rounds):
        for name, run in ways.items():
            of_trees.runner.grow_by(grow_shape if name == EAGER else graphs)
            Watched.seconds.clear()
            # Since its last turn others had theirs.
            of_trees.runner.stages.resume()
            found = run()
            if number:
                took[name].append(found)
                steps = max(found["drafts"] / clients, 1)
                stages[name] = {stage: s / steps for stage, s in Watched.seconds.items()}
    plain = took[PLAIN.name]
    rows = []
    for name, found in took.items():
        ratios = [a["seconds"] / b["seconds"] for a, b in zip(plain, found, strict=True)]
        seconds = median(each["seconds"] for each in found)
        a_draft = [each["seconds"] / each["drafts"] for each in found if each["drafts"]]
        pairs = zip(plain[-1]["answers"], found[-1]["answers"], strict=True)
        rows.append(
            {
                "clients": clients,
                "way": name,
                "tokens_per_s": round(clients * tokens / seconds, 1),
                "ratio": round(median(ratios), 3),
                "least": round(min(ratios), 3),
                "most": round(max(ratios), 3),
                "drafts": found[-1]["drafts"],
                "ms_per_step": round(1e3 * clients * median(a_draft), 2) if a_draft else None,
                "same_as_plain": sum(a == b for a, b in pairs),
                "stages_ms": {k: round(1e3 * s, 2) for k, s in stages[name].items()},
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=96, help="of each answer")
    parser.add_argument("--save", metavar="WORD", help="in benchmarks/results, named by WORD")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        started = [engine(method, dtype="bfloat16", max_num_seqs=32) for method in METHODS]
        engines = {m.name: stack.enter_context(e) for m, e in zip(METHODS, started, strict=True)}
        step = engines[METHODS[1].name].runner.step
        step.policy = Watched(step.policy.tree)
        rows = []
        for clients in arguments.clients:
            for row in measure(engines, clients, arguments.rounds, arguments.tokens):
                print(row, flush=True)
                rows.append(row)
    if arguments.save:
        print(save(f"growth-graphs-{arguments.save}", {"arguments": vars(arguments), "rows": rows}))


if __name__ == "__main__":
    main()
