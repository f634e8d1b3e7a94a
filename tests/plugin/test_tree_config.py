# SPDX-License-Identifier: Apache-2.0
"""The tree keys of speculative_config: what they default to, and how wrong ones are refused."""

import pytest

from vllm_eagle_pangu.config import TreeConfig, refusal
from vllm_eagle_pangu.core.ops import Ops
from vllm_eagle_pangu.core.request import RequestView
from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.env import NPU_IMPLEMENTATIONS, forced_eager_attention, npu_attention
from vllm_eagle_pangu.kernels import tree_attention

HOST_KEYS = {"method", "model", "num_speculative_tokens", "revision", "draft_sample_method"}


def split(**keys):
    return TreeConfig.split({"method": "eagle_pangu", "model": "head"} | keys, HOST_KEYS)


def test_a_refusal_names_key_value_and_mend():
    error = refusal("tree_width", 0, "must be at least 1", "set it to 1 or more")
    assert str(error) == "eagle_pangu: tree_width=0: must be at least 1; set it to 1 or more"


def test_without_tree_keys_the_tree_is_dynamic_of_sixteen_nodes():
    tree, host = split()
    assert tree == TreeConfig(16, 5, 4, "dynamic", "performance")
    assert host == {"method": "eagle3", "model": "head", "num_speculative_tokens": 16}


@pytest.mark.parametrize(
    ("keys", "policy"),
    [
        ({}, "adaptive"),
        ({"drafter_window": 64}, "adaptive"),
        ({"tree_width": 2}, "dynamic"),
        ({"num_speculative_tokens": 8}, "dynamic"),
        ({"tree_depth": None, "tree_policy": "chain"}, "chain"),
    ],
)
def test_where_trees_can_follow_latency_they_do_unless_a_shape_is_named(keys, policy):
    spec = {"method": "eagle_pangu", "model": "head", **keys}
    tree, _ = TreeConfig.split(spec, HOST_KEYS, adapts=True)
    assert tree.tree_policy == policy
    if policy == "adaptive":
        assert tree.shape() == TreeShape(4, 5, 16)


def test_keys_of_vllm_are_handed_on_and_hyphens_are_underscores():
    tree, host = split(**{"tree-depth": 2, "tree-width": 3, "revision": "main"})
    assert (tree.tree_depth, tree.tree_width) == (2, 3)
    assert host["revision"] == "main" and "tree_depth" not in host


def test_a_default_budget_fits_the_tree_that_was_asked_for():
    assert split(tree_depth=3, tree_width=1)[0].num_speculative_tokens == 3
    assert split(tree_depth=1, tree_width=8)[0].num_speculative_tokens == 8


def test_the_budget_may_fill_the_tree_exactly():
    assert split(num_speculative_tokens=20, tree_depth=2, tree_width=4)[0].shape().capacity == 20


def test_a_tree_is_never_deeper_than_its_nodes():
    shape = split(num_speculative_tokens=3, tree_depth=9)[0].shape()
    assert (shape.nodes, shape.depth, shape.width) == (3, 3, 4)


@pytest.mark.parametrize(
    ("keys", "length"),
    [({}, 5), ({"num_speculative_tokens": 7}, 7), ({"tree_depth": 3}, 3), ({"tree_width": 1}, 5)],
)
def test_a_chain_is_one_wide_and_as_deep_as_long(keys, length):
    tree, host = split(tree_policy="chain", **keys)
    assert (tree.tree_width, tree.tree_depth, tree.num_speculative_tokens) == (1, length, length)
    assert host["num_speculative_tokens"] == length


def test_the_policy_gives_the_configured_shape_to_every_request():
    tree, _ = split(num_speculative_tokens=10, tree_depth=3, tree_width=2)
    requests = [RequestView(name, 5, 6, 20, False, True) for name in "ab"]
    for shape in tree.policy(Ops.bind("reference")).plan(requests):
        assert (shape.width, shape.depth, shape.nodes) == (2, 3, 10)


@pytest.mark.parametrize(
    ("keys", "parts"),
    [
        ({"tree_width": 0}, ["tree_width=0", "at least 1", 'set "tree_width" to 1 or more']),
        ({"tree_depth": 0}, ["tree_depth=0", "at least 1", 'set "tree_depth" to 1 or more']),
        ({"tree_depth": -2}, ["tree_depth=-2", "at least 1"]),
        ({"num_speculative_tokens": 0}, ["num_speculative_tokens=0", "at least 1"]),
        (
            {"tree_width": "4"},
            ["tree_width='4'", "whole number, not str", 'write "tree_width" as a'],
        ),
        ({"tree_depth": True}, ["tree_depth=True", "not bool", 'write "tree_depth" as a']),
        ({"num_speculative_tokens": 2.5}, ["num_speculative_tokens=2.5", "not float"]),
        (
            {"num_speculative_tokens": 69},
            ["=69", "tree_width=4", "tree_depth=5", "at most 68", "to 68 or less", "tree_depth"],
        ),
        (
            {"num_speculative_tokens": 129, "tree_depth": 20},
            ["num_speculative_tokens=129", "at most 128", "to 128 or less"],
        ),
        ({"tree_policy": "beam"}, ["tree_policy='beam'", '"dynamic", "chain" or "adaptive"']),
        ({"verify_mode": "fast"}, ["verify_mode='fast'", '"performance" or "reference"']),
        (
            {"tree_policy": "chain", "tree_width": 2},
            ["tree_width=2", "one node wide", 'remove "tree_width"'],
        ),
        (
            {"tree_policy": "chain", "tree_depth": 3, "num_speculative_tokens": 5},
            ["tree_depth=3", "num_speculative_tokens=5", 'remove "tree_depth"'],
        ),
        ({"tree_witdh": 4}, ["tree_witdh=4", "no such key", '"tree_width"']),
        ({"zzz": 1}, ["zzz=1", "no such key", "remove it"]),
        ({"model": None}, ["model=None", "an EAGLE-3 head is needed", 'set "model"']),
    ],
)
def test_a_wrong_key_is_refused_with_its_value_and_the_mend(keys, parts):
    with pytest.raises(ValueError, match=r"^eagle_pangu: ") as error:
        split(**keys)
    for part in parts:
        assert part in str(error.value)


def test_a_missing_head_is_refused():
    with pytest.raises(ValueError, match=r'model=None: an EAGLE-3 head is needed; set "model"'):
        TreeConfig.split({"method": "eagle_pangu"}, HOST_KEYS)


def test_eager_attention_is_forced_by_1_and_other_values_are_refused(monkeypatch):
    monkeypatch.delenv("PANGU_FORCE_EAGER_ATTN", raising=False)
    assert not forced_eager_attention()
    monkeypatch.setenv("PANGU_FORCE_EAGER_ATTN", "1")
    assert forced_eager_attention()
    monkeypatch.setenv("PANGU_FORCE_EAGER_ATTN", "yes")
    with pytest.raises(ValueError, match="PANGU_FORCE_EAGER_ATTN='yes': must be 0 or 1"):
        forced_eager_attention()


@pytest.mark.parametrize(
    ("switches", "chosen"),
    [
        ((), "npu"),
        (("PANGU_DISABLE_NPU_FUSED_TREE",), "npu_torch_tree"),
        (("PANGU_DISABLE_NPU_FUSED",), "reference"),
        (("PANGU_FORCE_EAGER_ATTN",), "reference"),
        (("PANGU_DISABLE_NPU_FUSED", "PANGU_DISABLE_NPU_FUSED_TREE"), "reference"),
    ],
)
def test_switches_choose_the_attention_of_an_npu(switches, chosen, monkeypatch):
    names = ("FORCE_EAGER_ATTN", "DISABLE_NPU_FUSED", "DISABLE_NPU_FUSED_TREE")
    for name in names:
        monkeypatch.setenv(f"PANGU_{name}", "0")
    for name in switches:
        monkeypatch.setenv(name, "1")
    monkeypatch.delenv("PANGU_NPU_TREE_ATTENTION", raising=False)
    assert npu_attention() == chosen
    assert tree_attention._OP.of(chosen)


@pytest.mark.parametrize("name", NPU_IMPLEMENTATIONS)
def test_an_npus_attention_is_named_but_what_is_off_stays_off(name, monkeypatch):
    assert tree_attention._OP.of(name)
    monkeypatch.setenv("PANGU_NPU_TREE_ATTENTION", name)
    assert npu_attention() == name
    monkeypatch.setenv("PANGU_DISABLE_NPU_FUSED_TREE", "1")
    assert npu_attention() == ("reference" if name == "reference" else "npu_torch_tree")
    monkeypatch.setenv("PANGU_DISABLE_NPU_FUSED", "1")
    assert npu_attention() == "reference"


def test_another_name_for_an_npus_attention_is_refused(monkeypatch):
    monkeypatch.setenv("PANGU_NPU_TREE_ATTENTION", "splitfuse")
    problem = "PANGU_NPU_TREE_ATTENTION='splitfuse': must be one of npu, "
    with pytest.raises(ValueError, match=problem):
        npu_attention()
