# SPDX-License-Identifier: Apache-2.0
"""The demo pair decoded: greedily, the same with trees as without; and how fast, by the bench's E1.

In float32 all tokens are equal; where a device decodes in bfloat16 a token may differ at a near-tie
(`vllm_eagle_pangu/ties.py`), judged by the target's logits in float32 on the host.
"""

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from transformers import AutoTokenizer

from vllm_eagle_pangu import ties
from vllm_eagle_pangu.bench.config import (
    DEFAULT_SHAPE,
    BenchConfig,
    EngineConfig,
    PromptConfig,
    ThroughputConfig,
)
from vllm_eagle_pangu.bench.experiments.base import ratio_text
from vllm_eagle_pangu.bench.run import run_bench
from vllm_eagle_pangu.demo import pair
from vllm_eagle_pangu.doctor.device import CPU, CUDA
from vllm_eagle_pangu.doctor.finding import OK, WRONG, Finding
from vllm_eagle_pangu.measure.engine import Engine
from vllm_eagle_pangu.measure.lossless import Tokens, drawn, judged
from vllm_eagle_pangu.measure.method import Method
from vllm_eagle_pangu.measure.statistics import tau
from vllm_eagle_pangu.models.pangu_as_llama import text_logits

LOSSLESS, SPEED = "lossless", "E1"
NODES = 16
EXACT = "float32"
# The fastest of vLLM's own on this pair: docs/measured.md.
CHAIN = 6
REPEATS = 3


def lossless(device: str, count: int, tokens: int) -> Iterator[Finding]:
    """Two engines after each other, `count` prompts at once, then the verdict."""
    found = pair.find()
    tokenizer = AutoTokenizer.from_pretrained(found.target)
    prompts = [tokenizer(text)["input_ids"] for text in found.read_prompts(count)]
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
        plain, low = drawn(llm, prompts, tokens)
    speculative = Method("tree", NODES).speculative_config(str(found.draft))
    with Engine(str(found.target), speculative, **options) as llm:
        trees = llm.generate(prompts, max_tokens=tokens, ignore_eos=True)
        mean = tau(llm.counts["drafts"], llm.counts["accepted"])
    yield verdict(
        found.target, prompts, plain, trees, [] if options["dtype"] == EXACT else low, mean
    )


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
        return Finding(LOSSLESS, WRONG, f"no tree was drafted in {several}")
    differing = [(index, tree) for index, tree in enumerate(trees) if tree != plain[index]]
    alike = f"{len(plain) - len(differing)} of {several} identical"
    same = f"{alike} in {'bfloat16' if low else EXACT}, tau {mean:.2f}"
    if not differing:
        return Finding(LOSSLESS, OK, same)
    if not low:
        index, tree = differing[0]
        return Finding(LOSSLESS, WRONG, f"{same}; {_parts(index, plain[index], tree)}")
    exact = partial(exact_logits, text_logits(target))
    rounding, differences = judged(
        lambda *both: list(map(exact, *both)), prompts, plain, low, differing
    )
    for (index, tree), found in zip(differing, differences, strict=True):
        if not found.near_tie:
            where = _parts(index, plain[index], tree)
            gap = f"{max(found.gaps):.4f} behind the best, rounding explains {found.bound:.4f}"
            return Finding(LOSSLESS, WRONG, f"{same}; {where}, {gap}")
    return Finding(LOSSLESS, OK, f"{same}, the others part at near-ties; {rounding}")


def _parts(prompt: int, plain: list[int], tree: list[int]) -> str:
    at = ties.parting(plain, tree)
    return f"prompt {prompt} parts at token {at}: {tree[at]} for {plain[at]}"


def exact_logits(
    target: Callable[[list[int]], torch.Tensor], prompt: list[int], output: list[int]
) -> list[ties.Logits]:
    """Before each token of an output the highest logits, and its own; `target`: `text_logits`."""
    logits = target(prompt + output)
    found: list[ties.Logits] = []
    for row, token in zip(logits[len(prompt) - 1 : -1], output, strict=True):
        kept = {*row.topk(ties.TOP).indices.tolist(), token}
        found.append({each: float(row[each]) for each in kept})
    return found


def speed(device: str, prompts: int, tokens: int) -> Iterator[Finding]:
    """A finding for each method, in turns on the same prompts, and for what failed."""
    config = BenchConfig(
        # A GPU's plain decoding needs its CUDA graphs to be no weakened baseline.
        engine=EngineConfig(enforce_eager=device != CUDA),
        tokens=tokens,
        repeats=REPEATS,
        prompts=PromptConfig(count=prompts),
        throughput=ThroughputConfig(chains=(CHAIN,), trees=(DEFAULT_SHAPE,)),
    )
    with tempfile.TemporaryDirectory() as folder:
        run_bench(config, Path(folder), resume=False, only=None)
        found = json.loads((Path(folder) / "results.json").read_text("utf-8"))
    result = found["experiments"][SPEED]
    for row in result["rows"]:
        same = f"same tokens as plain {row.get('same_as_plain', '-')} of {row['prompts']}"
        text = f"{row['tokens_per_s']:.1f} tokens/s, {ratio_text(row)}, tau {row['tau'] or 1:.2f}"
        yield Finding(f"{SPEED} {row['method']}", OK, f"{text}, {same}")
    for error in result["errors"]:
        first, _, log = error.partition("\n")
        yield Finding(SPEED, WRONG, first, log=log)
