# SPDX-License-Identifier: Apache-2.0
"""Greedy decoding with trees against plain decoding, token by token.

    python benchmarks/lossless.py --dtype float32
    python benchmarks/lossless.py --dtype bfloat16 --shapes default
    python benchmarks/lossless.py --pair smollm2 --shapes narrow default --batches 1 8

In float32 every token must be equal. In bfloat16 every token of a differing output must be the
target's best to within the target's own rounding, measured here (`vllm_eagle_pangu/ties.py`).
"""

import argparse
import sys
from functools import partial

from engines import SHAPES, chats, engine, heldout_prompts, save

from vllm_eagle_pangu.demo import pair
from vllm_eagle_pangu.measure.lossless import drawn, judged, prefilled
from vllm_eagle_pangu.measure.method import PLAIN, tree
from vllm_eagle_pangu.measure.prompts import spread


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pair", choices=pair.NAMES, default=pair.DEMO)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    args = parser.parse_args()

    found = pair.find(args.pair)
    if found.chat:
        prompts = chats(found, args.prompts)
    else:
        # The ends made 3 and 900 tokens.
        prompts = spread(sorted(heldout_prompts(), key=len), args.prompts)
        prompts[0], prompts[-1] = prompts[0][:3], [*prompts[-1], *prompts[-2]][:900]
    start = partial(engine, of=found)
    lengths = sorted(map(len, prompts))
    print(f"{len(prompts)} prompts of {lengths[0]} to {lengths[-1]} tokens, {args.dtype}")
    whole = {"max_tokens": args.tokens, "ignore_eos": True}
    with start(PLAIN, dtype=args.dtype, logprobs_mode="raw_logits") as llm:
        plain, low = drawn(llm, prompts, args.tokens)

    rows, differing = [], []
    for name in args.shapes:
        for batch in args.batches:
            with start(tree(SHAPES[name]), dtype=args.dtype, max_num_seqs=batch) as llm:
                outputs = llm.generate(prompts, **whole)
            different = [i for i, out in enumerate(outputs) if out != plain[i]]
            differing += [(name, batch, i, outputs[i]) for i in different]
            rows.append({"shape": name, "batch": batch, "identical": len(prompts) - len(different)})
            same = f"{rows[-1]['identical']}/{len(prompts)} identical"
            print(f"{name:>8} {SHAPES[name]} batch {batch:>2}: {same}", flush=True)

    with start(PLAIN, dtype="float32", logprobs_mode="raw_logits") as llm:
        outputs = [(index, output) for _, _, index, output in differing]
        rounding, judgements = judged(partial(prefilled, llm), prompts, plain, low, outputs)
    differences = []
    for (shape, batch, index, _), one in zip(differing, judgements, strict=True):
        place = {"shape": shape, "batch": batch, "prompt": index, "position": one.position}
        gap, largest = one.gaps[one.position], max(one.gaps)
        differences.append({**place, "gap": gap, "largest_gap": largest, "wrong": one.wrong})
        where = f"{shape} batch {batch} prompt {index} token {one.position}"
        print(f"  {where}: gap {gap:.4f}, of all tokens {largest:.4f}")
    wrong = sum(not one.near_tie for one in judgements)
    print(f"Rounding: {rounding}.")
    print(f"{len(differences)} outputs differ, {wrong} of them by more than rounding")
    results = {"rows": rows, "rounding": vars(rounding), "differences": differences}
    results["prompts"] = lengths
    name = "lossless" if args.pair == pair.DEMO else f"lossless-{args.pair}"
    print(save(f"{name}-{args.dtype}", results))
    return 1 if wrong or (differences and args.dtype == "float32") else 0


if __name__ == "__main__":
    sys.exit(main())
