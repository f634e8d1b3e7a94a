# SPDX-License-Identifier: Apache-2.0
"""Sampling with trees against plain sampling: total variation over two tokens.

    python benchmarks/sampling.py --draws 20000

The first of three tokens is drawn in the prefill, from a prompt that all share; compared are the
second and third, both drawn at tree rows: at the root, then at a node or at the next root.

Two samples of n differ even when their distributions do not. How much is read off the samples
themselves: pooled and dealt anew at random, many times, they give the noise and how often it alone
exceeds what was seen.
"""

import argparse
import sys
from collections import Counter
from typing import Any

import numpy as np
from engines import SHAPES, engine, heldout_prompts, save

from vllm_eagle_pangu.measure.method import PLAIN, Method, tree

Outcome = tuple[int, int]
# How often the pooled draws are dealt anew.
DEALS = 999
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
    # Short: every draw prefills it anew, for pages are longer than it and only whole ones are kept.
    prompts = sorted(heldout_prompts(), key=len)
    prompt = prompts[len(prompts) // 3][:8]

    plain = _draw(args, prompt, PLAIN, seed=1)
    trees = _draw(args, prompt, tree(SHAPES[args.shape]), seed=2)
    rows = []
    for setting, left, right in zip(SETTINGS, plain, trees, strict=True):
        seen, noise = _variations(left, right)
        row = {
            **setting,
            "outcomes": len(set(left) | set(right)),
            "total_variation": round(seen, 4),
            "noise_mean": round(noise.mean(), 4),
            "noise_sd": round(noise.std(ddof=1), 4),
            "p_value": (1 + (noise >= seen).sum()) / (1 + DEALS),
        }
        rows.append(row)
        print(
            f"{setting}: total variation {seen:.4f}, noise {row['noise_mean']:.4f} +- "
            f"{row['noise_sd']:.4f}, p {row['p_value']:.3f} ({row['outcomes']} outcomes)",
            flush=True,
        )
    print(save("sampling", {"draws": args.draws, "shape": SHAPES[args.shape], "rows": rows}))
    # Four tests at once: one in a hundred runs may fail by chance.
    return 0 if min(row["p_value"] for row in rows) > 0.01 / len(rows) else 1


def _draw(args: Any, prompt: list[int], method: Method, seed: int) -> list[list[Outcome]]:
    """Per setting, the second and third token of each completion."""
    options = {"max_num_seqs": 128, "max_num_batched_tokens": 2304, "seed": seed}
    with engine(method, **options) as llm:
        drawn = []
        for setting in SETTINGS:
            params = {"max_tokens": 3, "ignore_eos": True, "detokenize": False, **setting}
            outputs = llm.generate([prompt] * args.draws, **params)
            drawn.append([(output[1], output[2]) for output in outputs])
            print(f"{method.kind} {setting}: drawn", flush=True)
        return drawn


def _variations(left: list[Outcome], right: list[Outcome]) -> tuple[float, np.ndarray]:
    """Total variation of samples of one size, and [DEALS] of the same draws dealt at random."""
    of_left, pooled = Counter(left), Counter([*left, *right])
    counts = np.array(list(pooled.values()))
    dealt = np.random.default_rng(0).multivariate_hypergeometric(counts, len(left), DEALS)
    samples = np.vstack([[of_left[outcome] for outcome in pooled], dealt])
    seen, *noise = np.abs(2 * samples - counts).sum(axis=1) / (2 * len(left))
    return seen, np.array(noise)


if __name__ == "__main__":
    sys.exit(main())
