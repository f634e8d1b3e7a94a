# SPDX-License-Identifier: Apache-2.0
"""vllm-ascend's worker, runner and layers decode trees, on CPU tensors: see npu_on_host.py."""

import pytest

pytestmark = pytest.mark.engine

PROMPTS = ["def main(argv):\n    ", "import os\nimport sys\n", "class Node:\n    def __init__("]


def decoded(llm, prompts=PROMPTS, **params) -> list[list[int]]:
    from vllm import SamplingParams

    params = {"temperature": 0, "max_tokens": 40} | params
    outputs = llm.generate(prompts, SamplingParams(**params))
    return [list(output.outputs[0].token_ids) for output in outputs]


def runner_of(llm):
    return llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner


def decoded_by_paths(llm) -> list[list[int]]:
    """`decoded`, by steps that accept: nothing would be shown if no path ever were."""
    from vllm_eagle_pangu.step.stages import Observer

    class Steps(Observer):
        def __init__(self):
            self.emitted = []

        def found(self, result):
            paths = getattr(getattr(result, "trees", None), "paths", None)
            if paths is not None:
                self.emitted += (paths.output >= 0).sum(1).tolist()

    steps = Steps()
    runner_of(llm).stages.observers += (steps,)
    tokens = decoded(llm)
    assert sum(steps.emitted) / len(steps.emitted) > 1.5, steps.emitted
    return tokens


PLAIN: list[list[int]] = []


@pytest.fixture
def plain(npu_engine) -> list[list[int]]:
    """What plain decoding emits, decoded once."""
    if not PLAIN:
        with npu_engine() as llm:
            PLAIN.extend(decoded(llm))
    return PLAIN


@pytest.mark.parametrize(
    "nodes, keys",
    [
        (8, {}),
        # Every invariant of the step is checked, and sampled values are those of the definitions.
        (8, {"verify_mode": "reference"}),
        # More than the 15 drafts for which vllm-ascend's builder lets itself be made.
        (24, {}),
    ],
    ids=["8-nodes", "all-checks", "24-nodes"],
)
def test_trees_emit_what_plain_decoding_emits(npu_engine, trees, plain, nodes, keys):
    with npu_engine(trees(nodes, **keys)) as llm:
        assert decoded_by_paths(llm) == plain


@pytest.mark.parametrize("route", ["npu_torch_tree", "npu_splitfuse", "npu_padded"])
def test_a_route_of_attention_that_the_environment_names(
    npu_engine, trees, plain, monkeypatch, route
):
    monkeypatch.setenv("PANGU_NPU_TREE_ATTENTION", route)
    with npu_engine(trees(8)) as llm:
        assert runner_of(llm).ops.attention == route
        assert decoded_by_paths(llm) == plain


def test_a_prompt_that_comes_while_others_decode_trees(npu_engine, trees, plain):
    """Rows of trees then pass vllm-ascend's own attention beside a chunk of the prompt."""
    with npu_engine(trees(8), max_num_seqs=2, max_num_batched_tokens=16) as llm:
        assert decoded(llm) == plain


def test_vllm_ascends_sampler_draws_at_rows_of_trees(npu_engine, trees, plain):
    """By noise, from one token each: it divides probabilities by exponentials on every row."""
    with npu_engine(trees(8)) as llm:
        assert decoded(llm, temperature=1.0, top_k=1) == plain


def test_pages_hold_what_plain_decoding_writes(npu_engine, trees):
    import torch

    def pages_of(llm) -> tuple[list[int], dict]:
        (tokens,) = decoded(llm, PROMPTS[:1])
        runner = runner_of(llm)
        layers = runner.compilation_config.static_forward_context
        target = {name: x.kv_cache for name, x in layers.items() if name.startswith("model.layers")}
        return tokens, {name: [part[1].clone() for part in kv] for name, kv in target.items()}

    with npu_engine() as llm:
        expected_tokens, expected = pages_of(llm)
    with npu_engine(trees(8)) as llm:
        tokens, held = pages_of(llm)
    assert tokens == expected_tokens
    # Of the last emitted token nothing is written; the demo prompt has a few tokens more.
    for name, parts in expected.items():
        for part, ours in zip(parts, held[name], strict=True):
            torch.testing.assert_close(ours[: len(tokens) - 1], part[: len(tokens) - 1])


def test_a_window_of_the_drafter_is_refused_at_start_up_but_where_torch_attends(
    npu_engine, trees, plain, monkeypatch
):
    with pytest.raises(ValueError, match="eagle_pangu: drafter_window=64: "):
        npu_engine(trees(8, drafter_window=64)).__enter__()
    monkeypatch.setenv("PANGU_DISABLE_NPU_FUSED", "1")
    with npu_engine(trees(8, drafter_window=64)) as llm:
        assert decoded(llm) == plain
