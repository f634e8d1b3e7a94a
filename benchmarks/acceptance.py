# SPDX-License-Identifier: Apache-2.0
"""Acceptance length τ by tree shape, and the chain policy against vLLM's own eagle3.

    python benchmarks/acceptance.py
    python benchmarks/acceptance.py --pair smollm2 --dtype bfloat16

Greedy decoding of the held-out prompts, for a chat model also by their kind; τ does not depend on
the machine's load. Exits non-zero when a wider tree of equal depth accepts less than a narrower
one, or when the chain policy's τ is more than 2 % from vLLM's eagle3 with the same head and K.
"""

import argparse
import itertools
import sys
from typing import Any

from engines import by_length, chats, engine, save

from vllm_eagle_pangu.demo import pair
from vllm_eagle_pangu.measure.method import Method, chain, tree
from vllm_eagle_pangu.measure.statistics import tau

DEPTHS = {
    3: [(1, 3, 3), (2, 3, 6), (4, 3, 12), (8, 3, 24)],
    5: [(1, 5, 5), (2, 5, 10), (4, 5, 16), (8, 5, 32)],
}
OTHERS = [(3, 4, 8), (8, 6, 48)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pair", choices=pair.NAMES, default=pair.DEMO)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128)
    args = parser.parse_args()
    args.of = pair.find(args.pair)
    prompts = chats(args.of, args.prompts) if args.of.chat else {"heldout": by_length(args.prompts)}

    rows, failures = [], []
    for depth, shapes in DEPTHS.items():
        found = [_tau(args, prompts, tree(shape)) for shape in shapes]
        rows += [{"method": "tree", "shape": s, **f} for s, f in zip(shapes, found, strict=True)]
        taus = [one["tau"] for one in found]
        if any(wide < narrow for narrow, wide in itertools.pairwise(taus)):
            failures.append(f"depth {depth}: a wider tree accepts less: {taus}")
        own = _tau(args, prompts, chain(depth))
        rows.append({"method": "eagle3", "shape": (1, depth, depth), **own})
        if abs(taus[0] / own["tau"] - 1) > 0.02:
            failures.append(f"chain policy {taus[0]:.3f} against vLLM's eagle3 {own['tau']:.3f}")
    for shape in OTHERS:
        rows.append({"method": "tree", "shape": shape, **_tau(args, prompts, tree(shape))})
    name = "acceptance" if args.pair == pair.DEMO else f"acceptance-{args.pair}"
    print(save(f"{name}-{args.dtype}", {"rows": rows, "failures": failures}))
    for failure in failures:
        print(failure)
    return 1 if failures else 0


def _tau(args: Any, prompts: dict[str, list[list[int]]], method: Method) -> dict[str, float]:
    """`tau` over all prompts, and by their kind. A chat's answers end where the target has it."""
    found, before = dict[str, float](), {"drafts": 0, "accepted": 0}
    with engine(method, of=args.of, dtype=args.dtype) as llm:
        for kind, asked in prompts.items():
            llm.generate(asked, max_tokens=args.tokens, ignore_eos=not args.of.chat)
            counted = {name: llm.counts[name] - before[name] for name in before}
            before = {name: llm.counts[name] for name in before}
            found[kind] = round(tau(**counted) or 1.0, 4)
    found["tau"] = round(tau(**before) or 1.0, 4)
    print(f"{method.title:>18}: {found}", flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
