# SPDX-License-Identifier: Apache-2.0
"""What traces cost: the same engine with its methods wrapped and unwrapped, prompt by prompt.

    python benchmarks/trace_overhead.py [--prompts 24] [--rounds 5]

One engine at batch 1, the demo pair, the default tree. Each prompt is completed with and without
traces, one right after the other, in an order that alternates; the figure is the median over the
prompts' ratios of times, with the middle half of them as its spread.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from engines import (
    HEAD,
    SHAPES,
    TARGET,
    clock,
    engine,
    generate,
    heldout_prompts,
    runner_of,
    save,
    tree,
)


class Tracing:
    """Puts the wrapped methods of a traced engine aside, and back."""

    def __init__(self, runner) -> None:
        owners = (runner, runner.sampler, runner.model)
        names = [*vars(runner)], ["forward"], ["compute_logits"]
        self.wrapped = [
            (owner, name, vars(owner)[name])
            for owner, own in zip(owners, names, strict=True)
            for name in own
            if hasattr(vars(owner).get(name), "__wrapped__")
        ]
        assert len(self.wrapped) > 8, self.wrapped

    def on(self) -> None:
        for owner, name, method in self.wrapped:
            setattr(owner, name, method)

    def off(self) -> None:
        for owner, name, _ in self.wrapped:
            delattr(owner, name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=96)
    arguments = parser.parse_args()
    prompts = [prompt for prompt in heldout_prompts() if len(prompt) < 300][: arguments.prompts]
    ratios, times = [], {"on": [], "off": []}
    with tempfile.TemporaryDirectory() as folder:
        spec = tree(SHAPES["default"], HEAD, trace_dir=folder)
        with engine(TARGET, spec, dtype="bfloat16", max_num_seqs=1) as llm:
            tracing = Tracing(runner_of(llm))
            generate(llm, prompts[:4], max_tokens=arguments.tokens)
            for turn in range(arguments.rounds):
                for index, prompt in enumerate(prompts):
                    took = {}
                    for state in ("on", "off") if (turn + index) % 2 else ("off", "on"):
                        if state == "off":
                            tracing.off()
                        begin = clock()
                        generate(llm, [prompt], max_tokens=arguments.tokens)
                        took[state] = clock() - begin
                        if state == "off":
                            tracing.on()
                    ratios.append(took["on"] / took["off"])
                    for state, value in took.items():
                        times[state].append(value)
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
