# SPDX-License-Identifier: Apache-2.0
"""Greedy decoding with trees against plain decoding, token by token.

    python benchmarks/lossless.py --dtype float32
    python benchmarks/lossless.py --dtype bfloat16 --shapes default

In float32 every token must be equal. In bfloat16 a first difference is looked up in the plain
engine: the gap between the target's two best log-probabilities there.
"""

import argparse
import sys
from typing import Any

from engines import HEAD, SHAPES, TARGET, engine, generate, heldout_prompts, save, tree

# bf16 keeps 8 bits: logits of magnitude 16 to 32 are 0.125 apart, so one rounding moves a gap by
# up to that.
NEAR_TIE = 0.125


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    args = parser.parse_args()

    prompts = _spread(heldout_prompts(), args.prompts)
    lengths = sorted(map(len, prompts))
    print(f"{len(prompts)} prompts of {lengths[0]} to {lengths[-1]} tokens, {args.dtype}")
    with engine(TARGET, None, dtype=args.dtype) as llm:
        plain = generate(llm, prompts, max_tokens=args.tokens)

    rows, differing = [], []
    for name in args.shapes:
        for batch in args.batches:
            speculative = tree(SHAPES[name], HEAD)
            with engine(TARGET, speculative, dtype=args.dtype, max_num_seqs=batch) as llm:
                outputs = generate(llm, prompts, max_tokens=args.tokens)
            different = [i for i, out in enumerate(outputs) if out != plain[i]]
            differing += [(name, batch, i, outputs[i]) for i in different]
            rows.append({"shape": name, "batch": batch, "identical": len(prompts) - len(different)})
            print(
                f"{name:>8} {SHAPES[name]} batch {batch:>2}: "
                f"{rows[-1]['identical']}/{len(prompts)} identical",
                flush=True,
            )

    ties = _gaps(args, prompts, plain, differing)
    far = [tie for tie in ties if tie["gap"] > NEAR_TIE]
    for tie in ties:
        print(
            f"  {tie['shape']} batch {tie['batch']} prompt {tie['prompt']} "
            f"token {tie['position']}: gap {tie['gap']:.4f}"
        )
    print(f"{len(ties)} first differences, {len(far)} of them not at a near-tie (gap > {NEAR_TIE})")
    results = {"rows": rows, "first_differences": ties, "near_tie": NEAR_TIE, "prompts": lengths}
    print(save(f"lossless-{args.dtype}", results))
    return 1 if far or (ties and args.dtype == "float32") else 0


def _spread(prompts: list[list[int]], count: int) -> list[list[int]]:
    """`count` prompts, evenly from the shortest to the longest; the ends made 3 and 900 tokens."""
    ordered = sorted(prompts, key=len)
    chosen = [ordered[i * (len(ordered) - 1) // max(count - 1, 1)] for i in range(count)]
    chosen[0] = chosen[0][:3]
    chosen[-1] = [*chosen[-1], *chosen[-2]][:900]
    return chosen


def _gaps(args: Any, prompts: Any, plain: Any, differing: Any) -> list[dict[str, Any]]:
    """The target's gap between its two best tokens at each first difference."""
    if not differing:
        return []
    from vllm import SamplingParams

    found = []
    with engine(TARGET, None, dtype=args.dtype) as llm:
        for shape, batch, index, output in differing:
            at = next(i for i, token in enumerate(output) if token != plain[index][i])
            context = {"prompt_token_ids": prompts[index] + plain[index][:at]}
            sampling = SamplingParams(temperature=0.0, max_tokens=1, logprobs=2)
            (answer,) = llm.generate([context], sampling, use_tqdm=False)
            best = sorted(lp.logprob for lp in answer.outputs[0].logprobs[0].values())
            found.append(
                {
                    "shape": shape,
                    "batch": batch,
                    "prompt": index,
                    "position": at,
                    "gap": best[-1] - best[-2],
                }
            )
    return found


if __name__ == "__main__":
    sys.exit(main())
