# SPDX-License-Identifier: Apache-2.0
"""tree_expand and top_children, C++ or Triton, against their references: integers exactly."""

import copy
import dataclasses
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from vllm_eagle_pangu.core.draft import TreeGrower
from vllm_eagle_pangu.core.ops import Ops
from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.kernels.top_children import cases as top_cases
from vllm_eagle_pangu.kernels.top_children import top_children
from vllm_eagle_pangu.kernels.tree_build import tree_build
from vllm_eagle_pangu.kernels.tree_build.cases import CASES, make_inputs
from vllm_eagle_pangu.kernels.tree_expand import cases as expand_cases
from vllm_eagle_pangu.kernels.tree_expand import tree_expand

from .chosen import IMPLEMENTATION, random_cases
from .inputs import assert_same_fields, random_shape, spoil

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Rows without a finite best logit are NaN to NumPy, which interprets, before they are -inf.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")


# ---- tree_expand ----


@pytest.mark.parametrize("case", expand_cases.CASES, ids=lambda case: case.name)
def test_tree_expand_of_a_case_equals_the_reference(case: expand_cases.ExpandCase) -> None:
    for seed in range(3):
        assert_expands_the_same(expand_cases.make_inputs(case, seed))


def assert_expands_the_same(inputs: dict[str, Any]) -> None:
    expected_inputs = copy.deepcopy(inputs)
    expected = tree_expand(**expected_inputs, implementation="reference")
    assert_same_fields(tree_expand(**inputs, implementation=IMPLEMENTATION), expected)
    assert_same_fields(inputs["candidates"], expected_inputs["candidates"])


def test_an_empty_batch_expands_to_nothing() -> None:
    for level in (1, 3):
        case = expand_cases.ExpandCase("none", 3, level, batch=0)
        assert_expands_the_same(expand_cases.make_inputs(case))


def test_growing_random_trees_equals_the_reference_at_every_level() -> None:
    draw = random.Random(1)
    torch.manual_seed(1)
    # Some 3.5 levels each.
    for _ in random_cases(200):
        shape, batch = random_shape(draw), draw.randint(1, 5 if IMPLEMENTATION == "cpp" else 2)
        width, dtype = shape.width, draw.choice(DTYPES)
        growers = [TreeGrower(shape, Ops.bind(name)) for name in (IMPLEMENTATION, "reference")]
        for level in range(1, shape.depth + 1):
            size = (batch, width) if level == 1 else (batch, width, width)
            scores = spoil(-torch.rand(size) * 4, draw).to(dtype)
            tokens = torch.randint(1000, size)
            if draw.random() < 0.2:
                scores, tokens = (
                    x.transpose(-1, -2).contiguous().transpose(-1, -2) for x in (scores, tokens)
                )
            before = scores.clone(), tokens.clone()
            mine, theirs = (grower.grow(scores, tokens) for grower in growers)
            assert_same_fields(mine, theirs)
            torch.testing.assert_close(scores, before[0], rtol=0, atol=0, equal_nan=True)
            assert torch.equal(tokens, before[1])
        assert_same_fields(growers[0]._candidates, growers[1]._candidates)
        root = torch.randint(1000, (batch,))
        mine, theirs = (grower.finish(root) for grower in growers)
        assert_same_fields(mine, theirs)
        mine.check()


def test_a_frontier_keeps_its_values_when_the_next_level_grows() -> None:
    torch.manual_seed(2)
    grower = TreeGrower(TreeShape(3, 3, 9), Ops.bind(IMPLEMENTATION))
    first = grower.grow(-torch.rand(2, 3), torch.randint(99, (2, 3)))
    before = dataclasses.replace(first, **{k: v.clone() for k, v in tensors(first).items()})
    grower.grow(-torch.rand(2, 3, 3), torch.randint(99, (2, 3, 3)))
    assert_same_fields(first, before)


def tensors(record: Any) -> dict[str, torch.Tensor]:
    return {k: v for k, v in vars(record).items() if isinstance(v, torch.Tensor)}


# ---- top_children ----


def assert_same_top(logits: torch.Tensor, width: int, target_ids: torch.Tensor | None) -> None:
    before = logits.clone()
    scores, tokens = top_children(logits, width, target_ids, implementation=IMPLEMENTATION)
    torch.testing.assert_close(logits, before, rtol=0, atol=0, equal_nan=True)
    expected, expected_tokens = top_children(logits, width, target_ids, implementation="reference")
    assert scores.dtype == expected.dtype == torch.float32
    assert tokens.dtype == expected_tokens.dtype == torch.int64
    assert torch.equal(tokens, expected_tokens)
    torch.testing.assert_close(scores, expected, rtol=0, atol=top_cases.TOLERANCE)


@pytest.mark.parametrize("case", top_cases.CASES, ids=lambda case: case.name)
def test_top_children_of_a_case_equals_the_reference(case: top_cases.TopCase) -> None:
    for seed in range(3):
        assert_same_top(**top_cases.make_inputs(case, seed))


@pytest.mark.skipif(IMPLEMENTATION != "triton", reason="others have no lanes")
def test_top_children_equal_the_reference_however_few_lanes_there_are() -> None:
    from vllm_eagle_pangu.kernels.top_children.triton_impl import top_children as in_lanes

    for case in top_cases.CASES:
        inputs = top_cases.make_inputs(case)
        scores, tokens = top_children(**inputs, implementation="reference")
        for lanes in (16, 128) if case.vocab < 1000 else (1024,):
            mine, my_tokens = in_lanes(**inputs, lanes=lanes)
            assert torch.equal(my_tokens, tokens), (case, lanes)
            torch.testing.assert_close(mine, scores, rtol=0, atol=top_cases.TOLERANCE)


def test_top_children_of_rows_that_lie_apart_equal_the_reference() -> None:
    torch.manual_seed(5)
    logits = torch.randn(6, 300)
    assert_same_top(logits[::2, 40:201], 4, torch.randperm(161))
    assert_same_top(logits[:0], 4, None)


@pytest.mark.parametrize("dtype", DTYPES)
def test_top_children_of_random_logits_equals_the_reference(dtype: torch.dtype) -> None:
    draw = random.Random(3)
    torch.manual_seed(3)
    most_rows = 9 if IMPLEMENTATION == "cpp" else 2
    for _ in random_cases(170):
        width = draw.randint(1, 8)
        vocab = draw.choice((width, width + 1, 63, 64, 65, 127, 128, 129, 1000, 2560))
        logits = torch.randn(draw.randint(1, most_rows), vocab) * draw.choice((1, 5, 30))
        logits = spoil(logits, draw)
        if draw.random() < 0.2:
            logits = logits.sort().values  # each logit is a new best
        logits = logits.to(dtype)
        if draw.random() < 0.3:
            logits = torch.cat([logits, logits], dim=1)[:, :vocab]
        target_ids = torch.randperm(vocab * 2)[:vocab] if draw.random() < 0.5 else None
        assert_same_top(logits, width, target_ids)


def test_top_children_log_probabilities_are_those_of_float64() -> None:
    torch.manual_seed(4)
    for scale, shift in ((1, 0), (20, 0), (3, 1000), (3, -1000), (80, 0)):
        logits = torch.randn(4, 32000) * scale + shift
        scores, _ = top_children(logits, 8, None, implementation=IMPLEMENTATION)
        exact = logits.double().log_softmax(-1).sort(-1, descending=True).values[:, :8]
        torch.testing.assert_close(scores.double(), exact, rtol=1e-6, atol=2e-6)


def test_equal_logits_go_to_the_lower_index_across_blocks() -> None:
    logits = torch.zeros(1, 200)
    logits[0, [7, 70, 150, 199]] = 5.0
    for name in (IMPLEMENTATION, "reference"):
        assert top_children(logits, 6, None, implementation=name)[1].tolist() == [
            [7, 70, 150, 199, 0, 1]
        ]


@pytest.mark.parametrize("bad", [torch.nan, -torch.inf, torch.inf])
def test_a_row_without_a_finite_best_logit_scores_minus_infinity(bad: float) -> None:
    logits = torch.full((2, 100), bad)
    logits[1] = 0.0
    for name in (IMPLEMENTATION, "reference"):
        scores, tokens = top_children(logits, 3, None, implementation=name)
        assert scores[0].tolist() == [-torch.inf] * 3 and tokens[0].tolist() == [0, 1, 2]
        assert scores[1].tolist() == pytest.approx([-4.6051702] * 3)


# ---- faces ----


@pytest.mark.parametrize("op", [top_children, tree_build, tree_expand])
def test_prepare_knows_each_implementation_and_no_other(op: Any) -> None:
    for name in ("reference", IMPLEMENTATION):
        op.prepare(name)
    with pytest.raises(ValueError, match="'cuda' is unknown; use one of 'reference', 'cpp'"):
        op.prepare("cuda")


UNKNOWN: dict[str, Callable[[], Any]] = {
    "top_children": lambda: top_children(torch.zeros(1, 4), 2, None, implementation="fast"),
    "tree_expand": lambda: tree_expand(
        **expand_cases.make_inputs(expand_cases.CASES[0]), implementation="fast"
    ),
    "tree_build": lambda: tree_build(**make_inputs(CASES[0]), implementation="fast"),
}


@pytest.mark.parametrize("op", UNKNOWN)
def test_an_unknown_implementation_is_refused(op: str) -> None:
    with pytest.raises(ValueError, match=f"{op}: implementation='fast'"):
        UNKNOWN[op]()
