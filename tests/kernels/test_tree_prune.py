# SPDX-License-Identifier: Apache-2.0
"""tree_prune and tally_paths, C++ or Triton, equal their references; what they keep are trees."""

import copy

import pytest
import torch

from vllm_eagle_pangu.core.tree import TreeBatch
from vllm_eagle_pangu.kernels.tree_accept import tree_accept
from vllm_eagle_pangu.kernels.tree_prune import tally_paths, tree_prune
from vllm_eagle_pangu.kernels.tree_prune.cases import CASES, TOLERANCE, PruneCase, make_inputs

from .chosen import IMPLEMENTATION, random_cases

FIELDS = ("tokens", "parent", "depth", "valid", "visible", "score")


def random_case(seed: int) -> PruneCase:
    """B 1..4; from nothing pays to everything does."""
    cost = (0.0, 0.02, 0.2, 0.6)[seed % 4]
    size = 2 + seed % 19, 1 + seed % 6, 1 + seed // 4 % 4
    return PruneCase("random", *size, cost, kinds=1 + seed % 3)


def assert_equals_reference(inputs):
    before = copy.deepcopy(inputs)
    expected, expected_chance = tree_prune(**inputs, implementation="reference")
    kept, chance = tree_prune(**inputs, implementation=IMPLEMENTATION)
    torch.testing.assert_close(chance, expected_chance, rtol=TOLERANCE, atol=0.0)
    for name in FIELDS:
        assert torch.equal(getattr(kept, name), getattr(expected, name)), name
        assert torch.equal(getattr(inputs["trees"], name), getattr(before["trees"], name)), name


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_cases_equal_the_reference(case):
    for seed in range(3):
        assert_equals_reference(make_inputs(case, seed))


def test_random_trees_equal_the_reference():
    for seed in random_cases(300):
        assert_equals_reference(make_inputs(random_case(seed), seed))


@pytest.mark.parametrize("implementation", ["reference", IMPLEMENTATION])
def test_what_is_kept_are_trees_of_nodes_that_were_drafted(implementation):
    for seed in random_cases(100):
        case = random_case(seed)
        inputs = make_inputs(case, seed)
        kept, _ = tree_prune(**inputs, implementation=implementation)
        tree = TreeBatch.of(kept, case.depth)
        tree.check()
        for name in ("tokens", "score"):
            mine, theirs = getattr(tree, name), getattr(inputs["trees"], name)
            for request in range(case.batch):
                drafted = theirs[request].tolist()
                assert set(mine[request][tree.valid[request]].tolist()) <= set(drafted)


@pytest.mark.parametrize("implementation", ["reference", IMPLEMENTATION])
def test_free_nodes_are_all_kept_and_dear_ones_not(implementation):
    by_name = {case.name: case for case in CASES}
    inputs = make_inputs(by_name["free"])
    kept, chance = tree_prune(**inputs, implementation=implementation)
    assert int(kept.valid.sum()) == int(inputs["trees"].valid.sum()) == int((chance > 0).sum())
    inputs = make_inputs(by_name["too_dear"])
    kept, _ = tree_prune(**inputs, implementation=implementation)
    assert int(kept.valid.sum()) == by_name["too_dear"].batch


def test_tallies_equal_the_reference():
    for seed in random_cases(300):
        inputs = make_inputs(random_case(seed), seed)
        trees, depth = inputs["trees"], random_case(seed).depth
        generator = torch.Generator().manual_seed(seed)
        draws = trees.tokens.roll(-1, dims=1)
        draws = draws.where(torch.rand(draws.shape, generator=generator) < 0.8, 0)
        paths = tree_accept(trees.tokens, trees.parent, trees.valid, draws, depth)
        beliefs = []
        for implementation in ("reference", IMPLEMENTATION):
            belief = copy.deepcopy(inputs["belief"])
            of_paths = trees, inputs["kind"], paths.rows, paths.length
            tally_paths(*of_paths, belief, 0.99, implementation=implementation)
            beliefs.append(belief)
        for name in ("line", "information"):
            parts = (getattr(belief, name) for belief in reversed(beliefs))
            torch.testing.assert_close(*parts, rtol=TOLERANCE, atol=TOLERANCE)
