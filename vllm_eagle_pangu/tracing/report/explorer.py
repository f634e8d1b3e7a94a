# SPDX-License-Identifier: Apache-2.0
"""What the page's tree view is given: some of the steps, and the texts of their tokens."""

import math
from collections.abc import Sequence
from typing import Any

from vllm_eagle_pangu.tracing.report.recording import Step
from vllm_eagle_pangu.tracing.report.token_texts import token_texts

EMBEDDED_STEPS = 2000
# Tokens of the request's own text that are shown before the root.
CONTEXT_TOKENS = 24


def explorer_data(
    steps: Sequence[Step], tokenizer: Any | None = None, limit: int = EMBEDDED_STEPS
) -> dict[str, Any]:
    """At most `limit` steps, evenly chosen from the requests laid end to end, as JSON values.

    `requests`: names; a step's `request` is an index among them. `texts`: by token id, None
    without a tokenizer. `scores` are None where they are not finite. `before`: the tokens that the
    request emitted last before the root.
    """
    requests = list(dict.fromkeys(step.request for step in steps))
    index = {name: number for number, name in enumerate(requests)}
    ordered = sorted(steps, key=lambda step: (index[step.request], step.number))
    kept = min(limit, len(ordered))
    chosen = {place * len(ordered) // kept for place in range(kept)}
    contexts = _contexts(ordered)
    entries: list[dict[str, Any]] = [
        {
            "request": index[step.request],
            "step": step.number,
            "prefix": step.prefix_tokens,
            "tokens": step.tokens,
            "parents": step.parents,
            "scores": [round(s, 4) if math.isfinite(s) else None for s in step.scores],
            "accepted": step.accepted,
            "emitted": step.emitted,
            "before": contexts[place],
        }
        for place, step in enumerate(ordered)
        if place in chosen
    ]
    texts = None
    if tokenizer is not None:
        used = {t for e in entries for name in ("tokens", "emitted", "before") for t in e[name]}
        texts = token_texts(tokenizer, sorted(used))
    return {"total": len(ordered), "requests": requests, "texts": texts, "steps": entries}


def _contexts(ordered: Sequence[Step]) -> list[list[int]]:
    """Before each step, what its request emitted so far; nothing where steps are missing."""
    contexts: list[list[int]] = []
    text: list[int] = []
    for before, step in zip((None, *ordered), ordered, strict=False):
        follows = (
            before is not None
            and before.request == step.request
            and before.prefix_tokens + len(before.emitted) == step.prefix_tokens
            and before.emitted[-1:] == step.tokens[:1]
        )
        text = text[-CONTEXT_TOKENS:] if follows else []
        contexts.append(text[:-1])
        text = [*(text or step.tokens[:1]), *step.emitted]
    return contexts
