# SPDX-License-Identifier: Apache-2.0
"""Acceptance length τ by tree shape, and the chain policy against vLLM's own eagle3.

    python benchmarks/acceptance.py

Greedy decoding of the held-out prompts; τ does not depend on the machine's load. Exits non-zero
when a wider tree of equal depth accepts less than a narrower one, or when the chain policy's τ is
more than 2 % from vLLM's eagle3 with the same head and K.
"""

import argparse
import itertools
import sys
from typing import Any

from engines import by_length, engine, save

from vllm_eagle_pangu.measure.method import Method, chain, tree
from vllm_eagle_pangu.measure.statistics import tau

DEPTHS = {
    3: [(1, 3, 3), (2, 3, 6), (4, 3, 12), (8, 3, 24)],
    5: [(1, 5, 5), (2, 5, 10), (4, 5, 16), (8, 5, 32)],
}
OTHERS = [(3, 4, 8), (8, 6, 48)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128)
    args = parser.parse_args()
    prompts = by_length(args.prompts)

    rows, failures = [], []
    for depth, shapes in DEPTHS.items():
        taus = [_tau(args, prompts, tree(shape)) for shape in shapes]
        rows += [
            {"method": "tree", "shape": s, "tau": t} for s, t in zip(shapes, taus, strict=True)
        ]
        if any(wide < narrow for narrow, wide in itertools.pairwise(taus)):
            failures.append(f"depth {depth}: a wider tree accepts less: {taus}")
        own = _tau(args, prompts, chain(depth))
        rows.append({"method": "eagle3", "shape": (1, depth, depth), "tau": own})
        if abs(taus[0] / own - 1) > 0.02:
            failures.append(f"chain policy {taus[0]:.3f} against vLLM's eagle3 {own:.3f}")
    for shape in OTHERS:
        rows.append({"method": "tree", "shape": shape, "tau": _tau(args, prompts, tree(shape))})
    print(save(f"acceptance-{args.dtype}", {"rows": rows, "failures": failures}))
    for failure in failures:
        print(failure)
    return 1 if failures else 0


def _tau(args: Any, prompts: list[list[int]], method: Method) -> float:
    with engine(method, dtype=args.dtype) as llm:
        llm.generate(prompts, max_tokens=args.tokens, ignore_eos=True)
    found = tau(llm.counts["drafts"], llm.counts["accepted"]) or 1.0
    print(f"{method.title:>18}: tau {found:.3f}", flush=True)
    return round(found, 4)


if __name__ == "__main__":
    sys.exit(main())
