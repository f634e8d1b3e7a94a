# SPDX-License-Identifier: Apache-2.0
"""The C++ drafting ops against their references: integers and masks exactly."""

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from vllm_eagle_pangu.core.draft import TreeGrower
from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.kernels import top_children as top_children_op
from vllm_eagle_pangu.kernels import tree_build as tree_build_op
from vllm_eagle_pangu.kernels import tree_expand as tree_expand_op
from vllm_eagle_pangu.kernels.top_children import top_children
from vllm_eagle_pangu.kernels.tree_build import tree_build
from vllm_eagle_pangu.kernels.tree_build.cases import CASES, make_inputs

from .inputs import assert_same_fields, random_shape, spoil

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


# ---- tree_expand ----


def test_growing_random_trees_equals_the_reference_at_every_level() -> None:
    draw = random.Random(1)
    torch.manual_seed(1)
    for _ in range(200):
        shape, batch = random_shape(draw), draw.randint(1, 5)
        width, dtype = shape.width, draw.choice(DTYPES)
        growers = [TreeGrower(shape, name) for name in ("cpp", "reference")]
        for level in range(1, shape.depth + 1):
            size = (batch, width) if level == 1 else (batch, width, width)
            scores = spoil(-torch.rand(size) * 4, draw).to(dtype)
            tokens = torch.randint(1000, size)
            if draw.random() < 0.2:
                scores, tokens = (
                    x.transpose(-1, -2).contiguous().transpose(-1, -2) for x in (scores, tokens)
                )
            before = scores.clone(), tokens.clone()
            mine, theirs = (
                (g.grow_first if level == 1 else g.grow)(scores, tokens) for g in growers
            )
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
    grower = TreeGrower(TreeShape(3, 3, 9), "cpp")
    first = grower.grow_first(-torch.rand(2, 3), torch.randint(99, (2, 3)))
    before = dataclasses.replace(first, **{k: v.clone() for k, v in tensors(first).items()})
    grower.grow(-torch.rand(2, 3, 3), torch.randint(99, (2, 3, 3)))
    assert_same_fields(first, before)


def tensors(record: Any) -> dict[str, torch.Tensor]:
    return {k: v for k, v in vars(record).items() if isinstance(v, torch.Tensor)}


# ---- top_children ----


def assert_same_top(logits: torch.Tensor, width: int, target_ids: torch.Tensor | None) -> None:
    before = logits.clone()
    scores, tokens = top_children(logits, width, target_ids, "cpp")
    torch.testing.assert_close(logits, before, rtol=0, atol=0, equal_nan=True)
    expected, expected_tokens = top_children(logits, width, target_ids, "reference")
    assert scores.dtype == expected.dtype == torch.float32
    assert tokens.dtype == expected_tokens.dtype == torch.int64
    assert torch.equal(tokens, expected_tokens)
    torch.testing.assert_close(scores, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_top_children_of_random_logits_equals_the_reference(dtype: torch.dtype) -> None:
    draw = random.Random(3)
    torch.manual_seed(3)
    for _ in range(150):
        width = draw.randint(1, 8)
        vocab = draw.choice((width, width + 1, 63, 64, 65, 127, 128, 129, 1000, 2560))
        logits = spoil(torch.randn(draw.randint(1, 9), vocab) * draw.choice((1, 5, 30)), draw)
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
        scores, _ = top_children(logits, 8, None, "cpp")
        exact = logits.double().log_softmax(-1).sort(-1, descending=True).values[:, :8]
        torch.testing.assert_close(scores.double(), exact, rtol=1e-6, atol=2e-6)


def test_equal_logits_go_to_the_lower_index_across_blocks() -> None:
    logits = torch.zeros(1, 200)
    logits[0, [7, 70, 150, 199]] = 5.0
    for name in ("cpp", "reference"):
        assert top_children(logits, 6, None, name)[1].tolist() == [[7, 70, 150, 199, 0, 1]]


@pytest.mark.parametrize("bad", [torch.nan, -torch.inf, torch.inf])
def test_a_row_without_a_finite_best_logit_scores_minus_infinity(bad: float) -> None:
    logits = torch.full((2, 100), bad)
    logits[1] = 0.0
    for name in ("cpp", "reference"):
        scores, tokens = top_children(logits, 3, None, name)
        assert scores[0].tolist() == [-torch.inf] * 3 and tokens[0].tolist() == [0, 1, 2]
        assert scores[1].tolist() == pytest.approx([-4.6051702] * 3)


# ---- faces ----


@pytest.mark.parametrize("op", [top_children_op, tree_build_op, tree_expand_op])
def test_prepare_knows_each_implementation_and_no_other(op: Any) -> None:
    for name in ("reference", "cpp"):
        op.prepare(name)
    with pytest.raises(ValueError, match="'cuda' is unknown; use one of 'reference', 'cpp'"):
        op.prepare("cuda")


UNKNOWN: dict[str, Callable[[], Any]] = {
    "top_children": lambda: top_children(torch.zeros(1, 4), 2, None, "fast"),
    "tree_expand": lambda: TreeGrower(TreeShape(1, 1, 1), "fast").grow_first(
        torch.zeros(1, 1), torch.zeros(1, 1, dtype=torch.int64)
    ),
    "tree_build": lambda: tree_build(**make_inputs(CASES[0]), implementation="fast"),
}


@pytest.mark.parametrize("op", UNKNOWN)
def test_an_unknown_implementation_is_refused(op: str) -> None:
    with pytest.raises(ValueError, match=f"{op}: implementation='fast'"):
        UNKNOWN[op]()
