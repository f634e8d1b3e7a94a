# SPDX-License-Identifier: Apache-2.0
"""What traces cost: the same engine with and without its observer, prompt by prompt.

    python benchmarks/trace_overhead.py [--prompts 24] [--rounds 5]

One engine at batch 1, the demo pair, the default tree. Each prompt is completed with and without
traces, one right after the other, in an order that alternates; the figure is the median over the
prompts' ratios of times, with the middle half of them as its spread.
"""

import argparse
import statistics
import tempfile

from engines import SHAPES, engine, heldout_prompts, save

from vllm_eagle_pangu.measure.engine import now_ms
from vllm_eagle_pangu.measure.method import tree
from vllm_eagle_pangu.measure.turns import turns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=96)
    arguments = parser.parse_args()
    prompts = [prompt for prompt in heldout_prompts() if len(prompt) < 300][: arguments.prompts]
    ratios, times = [], {"on": [], "off": []}
    with tempfile.TemporaryDirectory() as folder:
        options = {"trace_dir": folder, "dtype": "bfloat16", "max_num_seqs": 1}
        params = {"max_tokens": arguments.tokens, "ignore_eos": True}
        with engine(tree(SHAPES["default"]), **options) as llm:
            stages = llm.runner.stages
            traced = stages.observers
            assert traced
            llm.generate(prompts[:4], **params)
            for _, prompt, order in turns(("off", "on"), prompts, arguments.rounds):
                for state in order:
                    stages.observers = traced if state == "on" else ()
                    begin = now_ms()
                    llm.generate([prompt], **params)
                    times[state].append(now_ms() - begin)
                ratios.append(times["on"][-1] / times["off"][-1])
    quartiles = statistics.quantiles(ratios, n=4)
    result = {
        "pairs": len(ratios),
        "ratio_median": statistics.median(ratios),
        "ratio_quartiles": [quartiles[0], quartiles[2]],
        "ms_per_prompt": {state: statistics.median(values) for state, values in times.items()},
    }
    print(result)
    print(save("trace-overhead", result))


if __name__ == "__main__":
    main()
