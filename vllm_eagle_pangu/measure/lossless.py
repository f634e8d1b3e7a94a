# SPDX-License-Identifier: Apache-2.0
"""Greedy outputs that are not plain decoding's, judged by the target's own rounding: see `ties`."""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from vllm_eagle_pangu import ties
from vllm_eagle_pangu.measure.engine import Engine

Tokens = list[list[int]]
# Of prompts and as many outputs: before each token of an output the highest logits, and its own.
Prefill = Callable[[Tokens, Tokens], list[list[ties.Logits]]]


def drawn(engine: Engine, prompts: Tokens, tokens: int) -> tuple[Tokens, list[ties.Logits]]:
    """So many tokens for each prompt, and the highest logits before each of them: first all that
    decoding drew them from, then a prefill's. `engine` has "raw_logits" as `logprobs_mode`."""
    answers = engine.answers(prompts, logprobs=ties.TOP, max_tokens=tokens, ignore_eos=True)
    outputs = [list(answer.outputs[0].token_ids) for answer in answers]
    rows = [_values(row) for answer in answers for row in answer.outputs[0].logprobs]
    return outputs, [*rows, *chain.from_iterable(prefilled(engine, prompts, outputs))]


def prefilled(engine: Engine, prompts: Tokens, outputs: Tokens) -> list[list[ties.Logits]]:
    """See `Prefill`."""
    contexts = [prompt + output for prompt, output in zip(prompts, outputs, strict=True)]
    answers = engine.answers(contexts, max_tokens=1, prompt_logprobs=ties.TOP)
    rows = [a.prompt_logprobs[len(p) :] for a, p in zip(answers, prompts, strict=True)]
    return [[_values(row) for row in output] for output in rows]


def judged(
    exact: Prefill,
    prompts: Tokens,
    plain: Tokens,
    low: Sequence[ties.Logits],
    differing: Sequence[tuple[int, list[int]]],
) -> tuple[ties.Rounding, list[ties.Difference]]:
    """The target's rounding over plain decoding's outputs, and each differing one judged by it.

    `exact`: of the target in float32; `low`: what `drawn` says of `plain`; `differing`: the place
    of a prompt, and an output for it.
    """
    rows = list(chain.from_iterable(exact(prompts, plain)))
    rounding = ties.rounding(zip(low, rows + rows, strict=True))
    logits = exact([prompts[index] for index, _ in differing], [output for _, output in differing])
    return rounding, [
        ties.judge(plain[index], output, its_logits, rounding.bound)
        for (index, output), its_logits in zip(differing, logits, strict=True)
    ]


def _values(row: Any) -> ties.Logits:
    return {token: entry.logprob for token, entry in row.items()}
