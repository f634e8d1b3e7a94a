# SPDX-License-Identifier: Apache-2.0
"""tree_build as C++ or Triton against its reference: everything exactly, scores included."""

import dataclasses
import random
from typing import Any

import pytest
import torch

from vllm_eagle_pangu.kernels.tree_build import tree_build
from vllm_eagle_pangu.kernels.tree_build.cases import CASES, BuildCase, make_inputs

from .chosen import IMPLEMENTATION, random_cases
from .inputs import assert_same_fields, random_shape, spoil

KINDS = ("random", "ties", "certain", "rising", "holes", "nothing")
# Each is a launch of its own to an interpreter.
MOST_REQUESTS = 5 if IMPLEMENTATION == "cpp" else 2


def assert_builds_the_same(inputs: dict[str, Any]) -> None:
    before = {name: x.clone() for name, x in inputs.items() if isinstance(x, torch.Tensor)}
    trees = tree_build(**inputs, implementation=IMPLEMENTATION)
    for name, x in before.items():
        torch.testing.assert_close(inputs[name], x, rtol=0, atol=0, equal_nan=True)
    assert_same_fields(trees, tree_build(**inputs, implementation="reference"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_tree_build_of_a_case_equals_the_reference(case: BuildCase) -> None:
    for seed in range(3):
        assert_builds_the_same(make_inputs(case, seed))


def test_tree_build_of_random_candidates_equals_the_reference() -> None:
    draw = random.Random(0)
    for seed in random_cases(500):
        size = dataclasses.astuple(random_shape(draw))
        case = BuildCase("random", *size, draw.randint(1, MOST_REQUESTS), draw.choice(KINDS))
        inputs = make_inputs(case, seed)
        if draw.random() < 0.3:
            inputs["scores"] = spoil(inputs["scores"], draw)
        assert_builds_the_same(inputs)


def test_tree_build_takes_strided_candidates_and_an_empty_batch() -> None:
    inputs = make_inputs(BuildCase("wide", 3, 3, 9, 4))
    for name in ("tokens", "scores", "parents"):
        inputs[name] = inputs[name].t().contiguous().t()
        assert not inputs[name].is_contiguous()
    assert_builds_the_same(inputs)
    none = {n: x[:0] if isinstance(x, torch.Tensor) else x for n, x in inputs.items()}
    assert_builds_the_same(none)
