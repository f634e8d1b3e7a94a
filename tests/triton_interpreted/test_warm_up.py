# SPDX-License-Identifier: Apache-2.0
"""The first requests find every Triton kernel compiled: start-up launched each form that they take.

What Triton would compile is asked of Triton: the key under which it keeps a launch's binary, for a
GPU that need not be there.
"""

import functools

import pytest
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction, create_function_from_signature

from vllm_eagle_pangu.core.ops import Ops
from vllm_eagle_pangu.engine.cpu_worker import TreeCPUModelRunner
from vllm_eagle_pangu.engine.gpu_worker import TreeGPUModelRunner

PROMPTS = [list(b"the quick brown fox"), list(b"over"), list(range(40, 100))]
EVERY_KERNEL = {
    "_commit_pages_kernel",
    "_commit_slots_kernel",
    "_draft_batch_kernel",
    "_top_children_kernel",
    "_tree_accept_kernel",
    "_tree_build_kernel",
    "_tree_expand_kernel",
    "tree_attention_kernel",
}


@functools.cache
def binder(kernel: InterpretedFunction):
    compiled = JITFunction(kernel.fn, **kernel.kwargs)
    backend = make_backend(GPUTarget("cuda", 90, 32))
    return create_function_from_signature(compiled.signature, compiled.params, backend)


@pytest.fixture
def launched(monkeypatch):
    """The set of (kernel, compile key) launched so far."""
    keys: set[tuple[str, str]] = set()
    run = InterpretedFunction.run

    def recorded(kernel, *args, grid, warmup, **options):
        if kernel.fn.__module__.startswith("vllm_eagle_pangu."):
            _, specialization, chosen = binder(kernel)(*args, **options)
            keys.add((kernel.fn.__name__, f"{specialization} {chosen}"))
        return run(kernel, *args, grid=grid, warmup=warmup, **options)

    monkeypatch.setattr(InterpretedFunction, "run", recorded)
    return keys


def generate(llm, prompts, **params):
    from vllm import SamplingParams

    sampling = SamplingParams(**{"temperature": 0.0, "max_tokens": 4, "ignore_eos": True} | params)
    llm.generate([{"prompt_token_ids": p} for p in prompts], sampling, use_tqdm=False)


def policy_of_device(runner):
    """As on a device, where trees are chosen before they are drafted."""
    return runner.tree_config.policy(Ops.bind("cpp"), on_host=False)


@pytest.mark.parametrize(
    ("keys", "options"),
    [
        ({"num_speculative_tokens": 6, "tree_width": 2, "tree_depth": 3}, {"max_num_seqs": 3}),
        (
            {"num_speculative_tokens": 4, "tree_policy": "chain", "drafter_window": 16},
            {"max_num_seqs": 4, "max_num_batched_tokens": 12},
        ),
        (
            {"num_speculative_tokens": 6, "tree_width": 2, "tree_depth": 3}
            | {"tree_policy": "adaptive"},
            {"max_num_seqs": 3},
        ),
    ],
    ids=["tree", "chain, with a window and steps too small for all trees", "adaptive"],
)
def test_requests_make_triton_compile_nothing(
    engine, tiny_pangu, tiny_head, monkeypatch, launched, keys, options
):
    """No op was launched before the first request, which waited for all of them to compile."""
    for choice in ("device_implementation", "strided_pages"):
        monkeypatch.setattr(TreeCPUModelRunner, choice, getattr(TreeGPUModelRunner, choice))
    speculative = {"method": "eagle_pangu", "model": str(tiny_head), **keys}
    options = {"max_num_batched_tokens": 40} | options
    longest = 4
    if keys.get("tree_policy") == "adaptive":
        longest = 24  # till trees of all shapes have been looked at
        monkeypatch.setattr(TreeCPUModelRunner, "_policy", policy_of_device)
    with engine(tiny_pangu, speculative_config=speculative, **options) as trees:
        at_start = set(launched)
        launched.clear()
        generate(trees, PROMPTS[:1])
        generate(trees, PROMPTS)
        generate(trees, PROMPTS, temperature=0.8, top_k=5, max_tokens=longest)
        # Rows of logits as a request with penalties has them, level by level.
        generate(trees, PROMPTS[:2], frequency_penalty=0.5)
    assert {name for name, _ in launched} == EVERY_KERNEL
    assert launched <= at_start, launched - at_start
