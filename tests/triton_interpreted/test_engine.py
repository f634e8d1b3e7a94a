# SPDX-License-Identifier: Apache-2.0
"""The engine's step on the kernels of a GPU: every op in Triton, pages committed by one launch.

The CPU's engine, whose pages are strided tensors too, with the choices of the CUDA runner.
"""

import pytest
import torch

from vllm_eagle_pangu.core.adaptive import AdaptiveShapes
from vllm_eagle_pangu.core.ops import Ops
from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.engine.cpu_worker import TreeCPUModelRunner
from vllm_eagle_pangu.engine.gpu_worker import TreeGPUModelRunner
from vllm_eagle_pangu.engine.warm_up import capture_growth
from vllm_eagle_pangu.step.grow import grow_shape

from ..tiny_pair import PAD, tiny_target, write_tiny_head
from .mixed_heads import write_mixed_heads

pytestmark = pytest.mark.engine

PROMPTS = [list(b"the quick brown fox"), list(b"over"), list(range(40, 100))]


def generate(llm, **params):
    from vllm import SamplingParams

    sampling = SamplingParams(**{"temperature": 0.0, "max_tokens": 10, "ignore_eos": True} | params)
    requests = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    outputs = llm.generate(requests, sampling, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


@pytest.fixture
def cuda_choices(monkeypatch):
    """The CPU's runner with the choices of the CUDA runner."""
    for choice in ("device_implementation", "strided_pages", "emits_first"):
        monkeypatch.setattr(TreeCPUModelRunner, choice, getattr(TreeGPUModelRunner, choice))


def tree_of(head):
    return {
        "method": "eagle_pangu",
        "model": str(head),
        "num_speculative_tokens": 6,
        "tree_width": 2,
        "tree_depth": 3,
    }


def runner_of(llm):
    core = llm.llm_engine.engine_core.engine_core
    return core.model_executor.driver_worker.worker.model_runner


@pytest.mark.usefixtures("cuda_choices")
def test_trees_on_triton_kernels_give_plain_decodings_tokens(engine, tiny_pangu, tiny_head):
    with engine(tiny_pangu) as plain:
        expected = generate(plain)
    # A budget that makes the long prompt's second chunk share a step with trees.
    settings = {"speculative_config": tree_of(tiny_head), "max_num_batched_tokens": 40}
    with engine(tiny_pangu, **settings) as trees:
        assert runner_of(trees).ops.implementation == "triton"
        assert runner_of(trees).pages.tables, "one launch commits all layers"
        assert generate(trees) == expected

        # Grown by graphs: here of two trees and of as many as there may be, three of them real.
        replayed = grow_by_graphs(runner_of(trees))
        assert generate(trees) == expected
        assert len(set(replayed)) == 2, replayed


@pytest.mark.usefixtures("cuda_choices")
def test_trees_of_masked_rows_too(engine, tiny_pangu, tmp_path):
    """Of a head that drafts all levels at once."""
    with engine(tiny_pangu) as plain:
        expected = generate(plain)
    head = write_tiny_head(tmp_path / "head", ptd_token_id=PAD)
    with engine(tiny_pangu, speculative_config=tree_of(head)) as trees:
        assert runner_of(trees).draft_head.parallel
        replayed = grow_by_graphs(runner_of(trees))
        assert generate(trees) == expected
        assert replayed


def grow_by_graphs(runner):
    """Grow trees by what stands for graphs, each held to the tree that is grown without: drafts
    that are wrong change no token. Returns how many trees were grown, call by call."""
    replayed, last = [], []
    graphs = capture_growth(runner, runs_again(replayed))

    def grow_one(*grown_from):
        tree = graphs(*grown_from)
        # Those before are verified, and learnt from, behind this call.
        for before, as_it_was in last:
            assert_same_trees(before, as_it_was)
        assert_same_trees(tree, grow_shape(*grown_from))
        last[:] = [(tree, tree.select(torch.arange(tree.batch_size)))]
        return tree

    runner.grow_by(grow_one)
    return replayed


def assert_same_trees(these, those):
    for name, tensor in vars(those).items():
        if isinstance(tensor, torch.Tensor):
            torch.testing.assert_close(getattr(these, name), tensor, msg=name)


def runs_again(replayed):
    """In a CUDA graph's place: the same calls again, into the same tensors."""

    def capture(run):
        result = run()

        def replay():
            replayed.append(result.batch_size)
            for name, made in vars(run()).items():
                if isinstance(made, torch.Tensor):
                    getattr(result, name).copy_(made)

        return replay, result

    return capture


@pytest.mark.usefixtures("cuda_choices")
def test_trees_that_follow_latency_too(engine, tiny_pangu, tiny_head):
    """As on a device: chosen on the host, of trees that Triton's kernels drafted."""
    with engine(tiny_pangu) as plain:
        expected = generate(plain, max_tokens=24)
    with engine(tiny_pangu, speculative_config=tree_of(tiny_head)) as trees:
        step = runner_of(trees).step
        step.policy = AdaptiveShapes(TreeShape(2, 3, 6), Ops.bind("cpp"), False, sizes=(4, 8, 16))
        # Of this policy's shapes, too, by what stands for graphs.
        replayed = grow_by_graphs(runner_of(trees))
        assert generate(trees, max_tokens=24) == expected
        assert replayed
        assert step.policy.costs.known and step.policy.trees.known_whole


@pytest.mark.usefixtures("cuda_choices")
def test_layers_with_other_kv_heads_in_one_group_are_committed_too(engine, tmp_path):
    """One launch commits layers of one shape: an engine with others failed at start."""
    target = write_mixed_heads(tmp_path / "target")
    head = write_tiny_head(tmp_path / "head", tiny_target(bias=False))
    with engine(target) as plain:
        expected = generate(plain)
    with engine(target, speculative_config=tree_of(head)) as trees:
        (group,) = {group for group, _ in runner_of(trees).pages.layers}
        assert generate(trees) == expected
        committed = runner_of(trees).pages.tables[group]
    assert sorted(len(layers.keys) for layers in committed) == [1, 2]
