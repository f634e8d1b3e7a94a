# SPDX-License-Identifier: Apache-2.0
"""Sampling with trees against plain sampling: total variation over two tokens.

    python benchmarks/sampling.py --draws 20000

The first of three tokens is drawn in the prefill, from a prompt that all share; compared are the
second and third, both drawn at tree rows: at the root, then at a node or at the next root.
"""

import argparse
import sys
from collections import Counter
from typing import Any

from engines import HEAD, SHAPES, TARGET, engine, generate, heldout_prompts, save, tree

SETTINGS = [
    {"temperature": 0.8},
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 1.2},
    {"temperature": 1.2, "top_k": 20},
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=20000)
    parser.add_argument("--shape", choices=list(SHAPES), default="default")
    args = parser.parse_args()
    # Short, because every draw prefills it anew: it costs time and proves nothing.
    prompts = sorted(heldout_prompts(), key=len)
    prompt = prompts[len(prompts) // 3][:8]

    first = _draw(args, prompt, None, seed=1)
    second = _draw(args, prompt, None, seed=2)
    trees = _draw(args, prompt, tree(SHAPES[args.shape], HEAD), seed=3)
    rows, worst = [], 0.0
    for index, setting in enumerate(SETTINGS):
        noise = _variation(first[index], second[index], args.draws)
        both = Counter(first[index]) + Counter(second[index])
        # Two plain runs of n differ by `noise`; against the 2n pooled draws it shrinks.
        expected = noise * (0.75**0.5)
        seen = _pooled(trees[index], both, args.draws)
        rows.append(
            {
                **setting,
                "noise": noise,
                "expected_pooled": expected,
                "tree_vs_pooled_plain": seen,
                "outcomes": len(both),
            }
        )
        worst = max(worst, seen / max(expected, 1e-9))
        print(
            f"{setting}: plain against plain {noise:.4f}; tree against both plain runs "
            f"{seen:.4f}, expected from noise alone {expected:.4f} ({len(both)} outcomes)"
        )
    print(save("sampling", {"draws": args.draws, "shape": SHAPES[args.shape], "rows": rows}))
    return 0 if worst < 1.1 else 1


def _draw(args: Any, prompt: list[int], speculative: Any, seed: int) -> list[Counter]:
    options = {"max_num_seqs": 128, "max_num_batched_tokens": 2304, "seed": seed}
    with engine(TARGET, speculative, **options) as llm:
        counts = []
        for setting in SETTINGS:
            outputs = generate(llm, [prompt] * args.draws, max_tokens=3, **setting)
            counts.append(Counter((output[1], output[2]) for output in outputs))
        return counts


def _variation(left: Counter, right: Counter, draws: int) -> float:
    return sum(abs(left[key] - right[key]) for key in left.keys() | right.keys()) / (2 * draws)


def _pooled(left: Counter, both: Counter, draws: int) -> float:
    keys = left.keys() | both.keys()
    return sum(abs(left[key] - both[key] / 2) for key in keys) / (2 * draws)


if __name__ == "__main__":
    sys.exit(main())
