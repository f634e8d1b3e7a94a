# SPDX-License-Identifier: Apache-2.0
"""Record one verified tree of a real run for the README's picture.

    python benchmarks/record_tree.py docs/tree.json
    python -m vllm_eagle_pangu.demo.picture docs/tree.json docs/tree.svg

Takes, among the steps of some held-out prompts, one with a long accepted path that leaves the
drafter's first choice at least once: what a chain would have missed.
"""

import json
import sys
from pathlib import Path
from typing import Any

from engines import PAIR, engine, heldout_prompts
from transformers import AutoTokenizer

from vllm_eagle_pangu.core.tree import TreeBatch
from vllm_eagle_pangu.measure.method import tree
from vllm_eagle_pangu.step.accept import Accepted
from vllm_eagle_pangu.step.stages import Observer


class Recorded(Observer):
    """Each verified tree with its accepted rows and the bonus token."""

    def __init__(self) -> None:
        self.steps: list[tuple[TreeBatch, list[int], int]] = []

    def found(self, result: Any) -> None:
        if isinstance(result, Accepted) and result.placed.trees is not None:
            paths = result.paths
            rows = paths.rows[0, 1 : int(paths.length[0]) + 1].tolist()
            tree = result.placed.trees.tree
            self.steps.append((tree, rows, int(paths.output[0, len(rows)])))


def main() -> int:
    path = Path(sys.argv[1])
    recorded, tokenizer = Recorded(), AutoTokenizer.from_pretrained(PAIR.target)
    kept: list[dict[str, Any]] = []
    with engine(tree((4, 5, 16))) as llm, llm.watched(recorded):
        for prompt in heldout_prompts()[:24]:
            recorded.steps.clear()
            (output,) = llm.generate([prompt], max_tokens=64, ignore_eos=True)
            kept += _describe(tokenizer, prompt, output, recorded.steps)
    best = max(kept, key=lambda one: (one["strays"], len(one["accepted"])))
    path.write_text(json.dumps(best, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{path}: accepted {len(best['accepted'])} nodes, {best['strays']} not the first choice")
    return 0


def _describe(tokenizer: Any, prompt: list[int], output: list[int], steps: list) -> list[dict]:
    described, emitted = [], 1
    for batch, rows, bonus in steps:
        count = int(batch.valid[0].sum())
        parent = batch.parent[0, :count].tolist()
        score = [round(value, 4) for value in batch.score[0, :count].tolist()]
        firsts = {parent[row]: row for row in range(count - 1, 0, -1)}
        for row in range(1, count):
            if score[row] > score[firsts[parent[row]]]:
                firsts[parent[row]] = row
        described.append(
            {
                "prompt": tokenizer.decode([*prompt, *output[: emitted - 1]])[-160:],
                "tokens": [tokenizer.decode([t]) for t in batch.tokens[0, :count].tolist()],
                "parent": parent,
                "score": score,
                "accepted": rows,
                "bonus": tokenizer.decode([bonus]),
                "strays": sum(firsts[parent[row]] != row for row in rows) if len(rows) > 3 else 0,
            }
        )
        emitted += len(rows) + 1
    return described


if __name__ == "__main__":
    sys.exit(main())
