# SPDX-License-Identifier: Apache-2.0
"""The engine's step on the kernels of a GPU: every op in Triton, pages committed by one launch.

The CPU's engine, whose pages are strided tensors too, with the choices of the CUDA runner.
"""

from vllm_eagle_pangu.engine.cpu_worker import TreeCPUModelRunner
from vllm_eagle_pangu.engine.gpu_worker import TreeGPUModelRunner

PROMPTS = [list(b"the quick brown fox"), list(b"over"), list(range(40, 100))]


def generate(llm, **params):
    from vllm import SamplingParams

    sampling = SamplingParams(**{"temperature": 0.0, "max_tokens": 10, "ignore_eos": True} | params)
    requests = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    outputs = llm.generate(requests, sampling, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def test_trees_on_triton_kernels_give_plain_decodings_tokens(
    engine, tiny_pangu, tiny_head, monkeypatch
):
    for choice in ("device_implementation", "strided_pages"):
        monkeypatch.setattr(TreeCPUModelRunner, choice, getattr(TreeGPUModelRunner, choice))
    with engine(tiny_pangu) as plain:
        expected = generate(plain)
    speculative = {
        "method": "eagle_pangu",
        "model": str(tiny_head),
        "num_speculative_tokens": 6,
        "tree_width": 2,
        "tree_depth": 3,
    }
    # A budget that makes the long prompt's second chunk share a step with trees.
    with engine(tiny_pangu, speculative_config=speculative, max_num_batched_tokens=40) as trees:
        runner = trees.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
        assert runner.model_runner.implementation == "triton"
        assert runner.model_runner.commit_layers, "one launch commits all layers"
        assert generate(trees) == expected
