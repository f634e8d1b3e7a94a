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
from pathlib import Path
from typing import Any

from engines import (
    HEAD,
    TARGET,
    acceptance_length,
    chain,
    clock,
    engine,
    generate,
    heldout_prompts,
    runner_of,
    save,
    tree,
)
from random_pair import write_random_pair

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
        folder = Path(tempfile.mkdtemp())
        target, head = write_random_pair(folder, args.random)
        methods = _cost_methods(head)
        prompts = [[(7 * i + j) % 1000 + 5 for j in range(100)] for i in range(2)]
        args.tokens, args.prompts = 32, 2
    else:
        target, head = TARGET, HEAD
        methods = _sweep_methods(head)
        ordered = sorted(heldout_prompts(), key=len)
        step = max(1, len(ordered) // args.prompts)
        prompts = ordered[step // 2 :: step][: args.prompts]

    rates, taus, steps = defaultdict(list), {}, defaultdict(list)
    for round_index in range(args.rounds):
        for name, speculative in methods.items():
            rate, tau, per_step = _speed(args, target, speculative, prompts)
            rates[name].append(rate)
            taus[name] = tau
            steps[name].append(per_step)
            print(
                f"round {round_index} {name:>16}: {rate:7.1f} tok/s  tau {tau:.2f}  "
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
    print(f"{'method':>16} {'tok/s':>8} {'ratio':>6} {'tau':>5} {'ms/step':>8}")
    for row in rows:
        print(
            f"{row['method']:>16} {row['tokens_per_s']:8.1f} {row['ratio']:6.2f} "
            f"{row['tau']:5.2f} {row['ms_per_step']:8.2f}"
        )
    best = [
        max((row for row in rows if row["method"].startswith(kind)), key=lambda row: row["ratio"])
        for kind in ("plain", "eagle3", "tree")
    ]
    stages = {row["method"]: _stages(args, target, methods[row["method"]], prompts) for row in best}
    for name, parts in stages.items():
        print(
            f"stages of {name}, ms per step: "
            + ", ".join(f"{part} {ms:.2f}" for part, ms in parts.items())
        )
    name = f"step-cost-random-{args.random}m" if args.random else "step-cost-demo"
    name += "-compiled" if args.compiled else ""
    print(save(name, {"dtype": args.dtype, "rows": rows, "stages_ms": stages}))
    return 0


def _sweep_methods(head: Path) -> dict[str, Any]:
    methods: dict[str, Any] = {"plain": None}
    methods |= {f"eagle3 K={k}": chain(k, head) for k in range(1, 7)}
    methods |= {f"tree {w},{d},{m}": tree((w, d, m), head) for w, d, m in SWEEP}
    return methods


def _cost_methods(head: Path) -> dict[str, Any]:
    """ms per step for M = 0, 4, 8, 16, 32."""
    methods: dict[str, Any] = {"plain": None}
    methods |= {f"eagle3 K={k}": chain(k, head) for k in (2, 3)}
    for shape in ((2, 2, 4), (3, 3, 8), (4, 5, 16), (6, 6, 32)):
        methods["tree {},{},{}".format(*shape)] = tree(shape, head)
    return methods


def _options(args: Any) -> dict[str, Any]:
    return {
        "dtype": args.dtype,
        "enforce_eager": not args.compiled,
        "max_num_seqs": 4,
        "skip_tokenizer_init": bool(args.random),
    }


def _speed(
    args: Any, target: Path, speculative: Any, prompts: list[list[int]]
) -> tuple[float, float, float]:
    """(tokens/s, τ, ms per decoding step), one prompt at a time, prefill included in tokens/s."""
    with engine(target, speculative, **_options(args)) as llm:
        generate(llm, prompts[:1], max_tokens=16, detokenize=not args.random)
        _, counters = acceptance_length(llm)
        core = llm.llm_engine.engine_core
        step, times = core.get_output, []

        def timed() -> Any:
            begin = clock()
            result = step()
            times.append(clock() - begin)
            return result

        core.get_output = timed
        begin, count = clock(), 0
        for prompt in prompts:
            count += len(
                generate(llm, [prompt], max_tokens=args.tokens, detokenize=not args.random)[0]
            )
        elapsed = clock() - begin
        tau, _ = acceptance_length(llm, counters)
    return 1e3 * count / elapsed, tau, statistics.median(times)


class Spent(Observer):
    """Milliseconds of a tree step by the table's stages."""

    def __init__(self, stages: Stages, spent: dict[str, float]) -> None:
        self.stages, self.spent = stages, spent

    def ended(self) -> None:
        for stage, seconds in self.stages.times.items():
            if stage in OF_STAGE:
                self.spent[OF_STAGE[stage]] += 1e3 * seconds


def _time_vllms(runner: Any, spent: dict[str, float]) -> None:
    """The same of vLLM's own runner, which tells nobody of its stages."""
    parts = [
        (runner, "_model_forward", "verify"),
        (runner.model, "compute_logits", "verify"),
        (runner.sampler, "forward", "sampler"),
        (runner, "_prepare_inputs", "inputs"),
        (runner, "_build_attention_metadata", "inputs"),
    ]
    if runner.speculative_config is not None:
        parts.append((runner.drafter, "propose", "draft"))

    def timed(original: Any, stage: str) -> Any:
        def wrapped(*a: Any, **k: Any) -> Any:
            begin = clock()
            try:
                return original(*a, **k)
            finally:
                spent[stage] += clock() - begin

        return wrapped

    for owner, name, stage in parts:
        setattr(owner, name, timed(getattr(owner, name), stage))


def _stages(
    args: Any, target: Path, speculative: Any, prompts: list[list[int]]
) -> dict[str, float]:
    """Median ms per step of the stages of a decoding step.

    `verify` is the target's forward and its logits, `draft` all passes of the head, `ours` what
    this plugin adds besides (placing trees, masks, walk, commit); vLLM's are `sampler` (and the
    rows that it is given), `inputs` (its batch and attention metadata) and `rest` (scheduler,
    bookkeeping, output).
    """
    with engine(target, speculative, **_options(args)) as llm:
        runner, spent = runner_of(llm), defaultdict(float)
        if hasattr(runner, "stages"):
            runner.stages.observers += (Spent(runner.stages, spent),)
        else:
            _time_vllms(runner, spent)
        steps = []
        core = llm.llm_engine.engine_core
        step = core.get_output

        def whole() -> Any:
            spent.clear()
            begin = clock()
            result = step()
            steps.append({**spent, "total": clock() - begin})
            return result

        core.get_output = whole
        for prompt in prompts:
            generate(llm, [prompt], max_tokens=args.tokens, detokenize=not args.random)
    # Steps with a prefill draft and verify another number of rows: the median leaves them out.
    parts = {
        stage: statistics.median(step.get(stage, 0.0) for step in steps)
        for stage in ("draft", "verify", "ours", "sampler", "inputs", "total")
    }
    parts["rest"] = parts["total"] - sum(v for k, v in parts.items() if k != "total")
    return {name: round(ms, 3) for name, ms in parts.items()}


if __name__ == "__main__":
    sys.exit(main())
