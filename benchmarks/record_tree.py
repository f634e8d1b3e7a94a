# SPDX-License-Identifier: Apache-2.0
"""Record one verified tree of a real run for the README's picture.

    python benchmarks/record_tree.py docs/tree.json
    python -m vllm_eagle_pangu.demo.picture docs/tree.json docs/tree.svg

Takes, among the traced steps of some held-out prompts, one with a long accepted path that leaves
the drafter's first choice at least once: what a chain would have missed.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from engines import PAIR, SHAPES, engine, heldout_prompts

from vllm_eagle_pangu.measure.method import tree
from vllm_eagle_pangu.tracing.report.explorer import CONTEXT_TOKENS, explorer_data
from vllm_eagle_pangu.tracing.report.recording import find_run, read_recording
from vllm_eagle_pangu.tracing.report.token_texts import read_tokenizer


def main() -> None:
    path = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        with engine(tree(SHAPES["default"]), trace_dir=folder) as llm:
            llm.generate(heldout_prompts()[:24], max_tokens=64, ignore_eos=True)
        steps = read_recording(find_run(Path(folder))).steps
    data = explorer_data(steps, read_tokenizer(PAIR.target))
    texts = data["texts"]
    # Traces hold no prompt: where enough was emitted before, that is the text to show.
    whole = [step for step in data["steps"] if len(step["before"]) >= CONTEXT_TOKENS - 1]
    best = max(whole, key=lambda step: (_strays(step), len(step["accepted"])))
    drawn = {
        "prompt": "".join(texts[token] for token in best["before"]),
        "tokens": [texts[token] for token in best["tokens"]],
        "parent": best["parents"],
        "score": best["scores"],
        "accepted": best["accepted"][1:],
        "bonus": texts[best["emitted"][-1]],
    }
    path.write_text(json.dumps(drawn, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{path}: accepted {len(drawn['accepted'])}, {_strays(best)} not the first choice")


def _strays(step: dict[str, Any]) -> int:
    """Accepted nodes that were not the first choice below their parent; 0 of a short path."""
    parents, scores, (_, *accepted) = step["parents"], step["scores"], step["accepted"]
    best: dict[int, float] = {}
    for parent, score in zip(parents[1:], scores[1:], strict=True):
        best[parent] = max(score, best.get(parent, score))
    return sum(scores[row] < best[parents[row]] for row in accepted) if len(accepted) > 3 else 0


if __name__ == "__main__":
    main()
