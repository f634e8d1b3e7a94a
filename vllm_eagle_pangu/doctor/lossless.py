# SPDX-License-Identifier: Apache-2.0
"""Greedy decoding of the demo pair with trees against without.

In float32 all tokens are equal; where a device decodes in
bfloat16 a token may differ at a near-tie (`vllm_eagle_pangu/ties.py`), judged by the target's
logits in float32 on the host.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_eagle_pangu import ties
from vllm_eagle_pangu.demo import pair
from vllm_eagle_pangu.doctor.device import CPU
from vllm_eagle_pangu.doctor.finding import OK, WRONG, Finding
from vllm_eagle_pangu.measure.engine import Engine
from vllm_eagle_pangu.measure.method import Method
from vllm_eagle_pangu.measure.statistics import tau

if TYPE_CHECKING:
    from vllm_eagle_pangu.reference.target import ReferenceTarget

NAME = "lossless"
NODES = 16
EXACT = "float32"
Tokens = list[list[int]]


def decoded(device: str, count: int, tokens: int) -> Iterator[Finding]:
    """Two engines after each other, then the verdict."""
    from transformers import AutoTokenizer

    found = pair.find()
    tokenizer = AutoTokenizer.from_pretrained(found.target)
    prompts = [tokenizer(text)["input_ids"] for text in found.read_prompts(count)]
    whole = {"max_tokens": tokens, "ignore_eos": True}
    options = {
        "dtype": EXACT if device == CPU else "bfloat16",
        "enforce_eager": True,
        "max_model_len": 1024,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 512,
        "kv_cache_memory_bytes": 1 << 27,
        "logprobs_mode": "raw_logits",
    }
    with Engine(str(found.target), None, **options) as llm:
        answers = llm.answers(prompts, logprobs=ties.TOP, **whole)
        plain = [list(answer.outputs[0].token_ids) for answer in answers]
        low = [] if options["dtype"] == EXACT else _drawn_from(llm, prompts, answers)
    speculative = Method("tree", NODES).speculative_config(str(found.draft))
    with Engine(str(found.target), speculative, **options) as llm:
        trees = llm.generate(prompts, **whole)
        mean = tau(llm.counts["drafts"], llm.counts["accepted"])
    yield verdict(found.target, prompts, plain, trees, low, mean)


def _drawn_from(llm: Engine, prompts: Tokens, answers: list[Any]) -> list[ties.Logits]:
    """The highest logits before every token of the answers, of decoding and then of a prefill."""
    rows = [row for answer in answers for row in answer.outputs[0].logprobs]
    contexts = [p + list(a.outputs[0].token_ids) for p, a in zip(prompts, answers, strict=True)]
    prefilled = llm.answers(contexts, max_tokens=1, prompt_logprobs=ties.TOP)
    for answer, prompt in zip(prefilled, prompts, strict=True):
        rows += answer.prompt_logprobs[len(prompt) :]
    return [{token: entry.logprob for token, entry in row.items()} for row in rows]


def verdict(
    target: Path,
    prompts: Tokens,
    plain: Tokens,
    trees: Tokens,
    low: Sequence[ties.Logits],
    mean: float | None,
) -> Finding:
    """`low`: what plain decoding drew from in half precision, empty where it was float32."""
    several = f"{len(prompts)} prompts x {len(plain[0])} tokens"
    if mean is None:
        return Finding(NAME, WRONG, f"no tree was drafted in {several}")
    parting = [i for i, tree in enumerate(trees) if tree != plain[i]]
    alike = f"{len(plain) - len(parting)} of {several} identical"
    same = f"{alike} in {'bfloat16' if low else EXACT}, tau {mean:.2f}"
    if not parting:
        return Finding(NAME, OK, same)
    if not low:
        return Finding(NAME, WRONG, f"{same}; {_parts(parting[0], plain, trees)}")
    return _judged(target, prompts, plain, trees, low, same)


def _parts(index: int, plain: Tokens, trees: Tokens) -> str:
    pairs = enumerate(zip(plain[index], trees[index], strict=True))
    at, (one, other) = next((at, both) for at, both in pairs if len(set(both)) > 1)
    return f"prompt {index} parts at token {at}: {other} for {one}"


def _judged(
    target: Path,
    prompts: Tokens,
    plain: Tokens,
    trees: Tokens,
    low: Sequence[ties.Logits],
    same: str,
) -> Finding:
    from vllm_eagle_pangu.reference.target import ReferenceTarget

    exact = ReferenceTarget(target)
    rows = [exact_logits(exact, prompt, out) for prompt, out in zip(prompts, plain, strict=True)]
    listed = [row for output in rows for row in output]
    rounding = ties.rounding(zip(low, listed + listed, strict=True))
    for index, (prompt, one, other) in enumerate(zip(prompts, plain, trees, strict=True)):
        if one != other:
            judged = ties.judge(one, other, exact_logits(exact, prompt, other), rounding.bound)
            if not judged.near_tie:
                where = _parts(index, plain, trees)
                gap = (
                    f"{max(judged.gaps):.4f} behind the best, rounding explains {judged.bound:.4f}"
                )
                return Finding(NAME, WRONG, f"{same}; {where}, {gap}")
    return Finding(NAME, OK, f"{same}, the others part at near-ties; {rounding}")


def exact_logits(
    target: ReferenceTarget, prompt: list[int], output: list[int]
) -> list[dict[int, float]]:
    """Before each token of an output the highest logits, and its own."""
    import torch
    from transformers import DynamicCache

    tokens = torch.tensor([prompt + output])
    positions = torch.arange(tokens.shape[1])[None]
    logits, _ = target.forward(tokens, positions, DynamicCache())
    found = []
    for row, token in zip(logits[0, len(prompt) - 1 : -1], output, strict=True):
        kept: list[Any] = [*row.topk(ties.TOP).indices.tolist(), token]
        found.append({each: float(row[each]) for each in kept})
    return found
