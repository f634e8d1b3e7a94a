# SPDX-License-Identifier: Apache-2.0
"""Speed and stage breakdown of a decoding step at batch 1: plain, vLLM's eagle3 chain, trees.

    python benchmarks/step_cost.py                      # the demo pair, best of a small sweep each
    python benchmarks/step_cost.py --random 300         # a random 300M openPangu target: cost only

Every method runs with the same flags, in one process after the other, interleaved over `--rounds`
rounds; figures are medians over the rounds. Stages are timed in rounds of their own.
"""

import argparse
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engines import PAIR, engine, heldout_prompts, save
from random_pair import write_random_pair

from vllm_eagle_pangu.measure.engine import Engine, logits_of, timed
from vllm_eagle_pangu.measure.files import aligned
from vllm_eagle_pangu.measure.method import PLAIN, Method, chain, tree
from vllm_eagle_pangu.measure.prompts import spread
from vllm_eagle_pangu.measure.statistics import tau
from vllm_eagle_pangu.step.stages import Observer, Stages

# Where the stages of a tree step lie in the table.
OF_STAGE = {
    "prepare": "inputs",
    "place": "ours",
    "verify": "verify",
    "draw": "sampler",
    "accept": "ours",
    "commit": "ours",
    "extend": "draft",
    "grow": "draft",
}
SWEEP = [(2, 3, 6), (3, 4, 8), (3, 5, 12), (4, 5, 12), (4, 5, 16), (4, 6, 20), (6, 6, 24)]
# Of a random pair: ms per step for M = 0, 4, 8, 16, 32.
COSTS = [(2, 2, 4), (3, 3, 8), (4, 5, 16), (6, 6, 32)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--random", type=int, metavar="M", help="random target of M million weights"
    )
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--compiled", action="store_true", help="torch.compile for every method")
    args = parser.parse_args()

    if args.random:
        pair = write_random_pair(Path(tempfile.mkdtemp()), args.random)
        chains, trees = (2, 3), COSTS
        prompts = [[(7 * i + j) % 1000 + 5 for j in range(100)] for i in range(2)]
        args.tokens = 32
    else:
        pair = PAIR.target, PAIR.draft
        chains, trees = range(1, 7), SWEEP
        prompts = spread(sorted(heldout_prompts(), key=len), args.prompts)
    methods = {"plain": PLAIN}
    methods |= {f"eagle3 K={length}": chain(length) for length in chains}
    methods |= {"tree {},{},{}".format(*shape): tree(shape) for shape in trees}

    rates, taus, steps = defaultdict(list), {}, defaultdict(list)
    for round_index in range(args.rounds):
        for name, method in methods.items():
            rate, taus[name], per_step = _speed(args, pair, method, prompts)
            rates[name].append(rate)
            steps[name].append(per_step)
            print(
                f"round {round_index} {name:>16}: {rate:7.1f} tok/s  tau {taus[name]:.2f}  "
                f"{per_step:.2f} ms/step",
                flush=True,
            )
    plain = statistics.median(rates["plain"])
    rows = [
        {
            "method": name,
            "tokens_per_s": round(statistics.median(rates[name]), 1),
            "ratio": round(statistics.median(rates[name]) / plain, 3),
            "tau": round(taus[name], 3),
            "ms_per_step": round(statistics.median(steps[name]), 3),
        }
        for name in methods
    ]
    print(aligned(list(rows[0]), [[str(cell) for cell in row.values()] for row in rows]))
    best = [
        max((row for row in rows if row["method"].startswith(kind)), key=lambda row: row["ratio"])
        for kind in ("plain", "eagle3", "tree")
    ]
    stages = {row["method"]: _stages(args, pair, methods[row["method"]], prompts) for row in best}
    for name, parts in stages.items():
        print(
            f"stages of {name}, ms per step: "
            + ", ".join(f"{part} {ms:.2f}" for part, ms in parts.items())
        )
    name = f"step-cost-random-{args.random}m" if args.random else "step-cost-demo"
    name += "-compiled" if args.compiled else ""
    print(save(name, {"dtype": args.dtype, "rows": rows, "stages_ms": stages}))
    return 0


def _opened(args: Any, pair: tuple[Path, Path], method: Method) -> Engine:
    return engine(
        method,
        *pair,
        dtype=args.dtype,
        enforce_eager=not args.compiled,
        max_num_seqs=4,
        skip_tokenizer_init=bool(args.random),
    )


def _params(args: Any) -> dict[str, Any]:
    return {"max_tokens": args.tokens, "ignore_eos": True, "detokenize": not args.random}


def _speed(
    args: Any, pair: tuple[Path, Path], method: Method, prompts: list[list[int]]
) -> tuple[float, float, float]:
    """(tokens/s, τ, ms per decoding step), one prompt at a time, prefill included in tokens/s."""
    with _opened(args, pair, method) as llm:
        llm.generate(prompts[:1], **{**_params(args), "max_tokens": 16})
        found = [llm.measure(f"prompt {i}", p, **_params(args)) for i, p in enumerate(prompts)]
    tokens, seconds, drafts, accepted = (
        sum(figures[name] for figures in found)
        for name in ("output_tokens", "seconds", "drafts", "accepted")
    )
    steps = [step for figures in found for step in figures["steps_ms"]]
    return tokens / seconds, tau(drafts, accepted) or 1.0, statistics.median(steps)


class Spent(Observer):
    """Milliseconds of a tree step by the table's stages."""

    def __init__(self, stages: Stages, spent: dict[str, float]) -> None:
        self.stages, self.spent = stages, spent

    def ended(self) -> None:
        for stage, seconds in self.stages.times.items():
            if stage in OF_STAGE:
                part = OF_STAGE[stage]
                self.spent[part] = self.spent.get(part, 0.0) + 1e3 * seconds


@contextmanager
def _watched(llm: Engine, spent: dict[str, float]) -> Iterator[None]:
    """`spent` of each step; of vLLM's own runner, which tells of no stages, by its modules."""
    runner = llm.runner
    if hasattr(runner, "stages"):
        with llm.watched(Spent(runner.stages, spent)):
            yield
        return
    parts = {"verify": llm.target_modules(), "sampler": [runner.sampler]}
    if runner.speculative_config is not None:
        head = runner.drafter.model
        parts["draft"] = [head, *logits_of(head)]
    with timed(spent, parts):
        yield


def _stages(
    args: Any, pair: tuple[Path, Path], method: Method, prompts: list[list[int]]
) -> dict[str, float]:
    """Median ms per step of the stages of a decoding step.

    `verify` is the target's forward and its logits, `draft` all passes of the head, `ours` what
    this plugin adds besides (placing trees, masks, walk, commit); vLLM's are `sampler` (and the
    rows that it is given), `inputs` (its batch and attention metadata) and `rest` (scheduler,
    bookkeeping, output). vLLM's own runner tells of its modules only: its `inputs`, and what its
    drafter does between passes, lie in `rest`.
    """
    steps, spent = [], dict[str, float]()
    with _opened(args, pair, method) as llm, _watched(llm, spent):
        for prompt in prompts:
            for total, _ in llm.steps(prompt, **_params(args)):
                steps.append({**spent, "total": total})
                spent.clear()
    # Steps with a prefill draft and verify another number of rows: the median leaves them out.
    parts = {
        stage: statistics.median(step.get(stage, 0.0) for step in steps)
        for stage in ("draft", "verify", "ours", "sampler", "inputs", "total")
    }
    parts["rest"] = parts["total"] - sum(v for k, v in parts.items() if k != "total")
    return {name: round(ms, 3) for name, ms in parts.items()}


if __name__ == "__main__":
    sys.exit(main())
