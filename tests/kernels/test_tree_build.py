# SPDX-License-Identifier: Apache-2.0
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_eagle_pangu.core.tree import TreeBatch
from vllm_eagle_pangu.kernels.tree_accept.reference import tree_accept
from vllm_eagle_pangu.kernels.tree_build.cases import CASES, BuildCase, make_inputs
from vllm_eagle_pangu.kernels.tree_build.reference import tree_build

KINDS = ("random", "ties", "certain", "rising", "holes", "nothing")
SHAPES = [(1, 1, 1), (1, 4, 3), (2, 3, 5), (3, 1, 2), (3, 3, 21), (4, 4, 12)]


def built(root_tokens, tokens, scores, parents, width, depth, nodes) -> TreeBatch:
    trees = tree_build(root_tokens, tokens, scores, parents, width, depth, nodes)
    return TreeBatch.of(trees, depth)


def rerank_by_hand(inputs, b: int):
    """Candidates that EAGLE-2 keeps, in order, and each one's score: `{candidate: score}`."""
    scores, parents = inputs["scores"][b].tolist(), inputs["parents"][b].tolist()
    capped: list[float] = []
    for score, parent in zip(scores, parents, strict=True):
        own = -math.inf if math.isnan(score) else score
        capped.append(min(own, capped[parent - 1]) if parent else own)
    possible = [c for c in range(len(capped)) if capped[c] > -math.inf]
    best = sorted(possible, key=lambda c: (-capped[c], c))[: inputs["nodes"]]
    return {c: capped[c] for c in sorted(best)}


def assert_is_rerank(inputs) -> None:
    tree = built(**inputs)
    tree.check()
    for b in range(tree.batch_size):
        kept = rerank_by_hand(inputs, b)
        row_of = {c: row for row, c in enumerate(kept, start=1)}
        n = len(kept)
        assert tree.node_count[b] == n
        assert tree.tokens[b, 0] == inputs["root_tokens"][b]
        assert tree.tokens[b, 1 : n + 1].tolist() == inputs["tokens"][b, list(kept)].tolist()
        assert tree.score[b, 1 : n + 1].tolist() == list(kept.values())
        parents = (int(inputs["parents"][b, c]) for c in kept)
        assert tree.parent[b, 1 : n + 1].tolist() == [p and row_of[p - 1] for p in parents]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("seed", range(3))
def test_cases_equal_rerank_by_hand(case, seed):
    assert_is_rerank(make_inputs(case, seed))


@settings(deadline=None, max_examples=150)
@given(st.sampled_from(SHAPES), st.sampled_from(KINDS), st.integers(0, 10**6))
def test_random_candidates_equal_rerank_by_hand(size, kind, seed):
    assert_is_rerank(make_inputs(BuildCase("random", *size, 3, kind), seed))


def test_probability_one_in_float32_leaves_no_orphan():
    """Regression: a child of probability 1.0 ties with its parent and was kept without it."""
    scores = torch.tensor([[-1.0, -0.5, -1.0, -9.0, -0.5, -9.0, -0.5, -9.0, -1.0, -9.0]])
    parents = torch.tensor([[0, 0, 1, 1, 2, 2, 5, 5, 3, 3]])
    tokens = torch.arange(10)[None] + 10
    for nodes, kept in ((1, [11]), (2, [11, 14]), (3, [11, 14, 16]), (4, [10, 11, 14, 16])):
        tree = built(torch.tensor([0]), tokens, scores, parents, 2, 3, nodes)
        tree.check()
        assert tree.tokens[0, 1:].tolist() == kept


def test_child_that_outranks_its_parent_does_not_come_without_it():
    scores = torch.tensor([[-1.0, -2.0, -3.0, -3.0, -0.1, -3.0]])
    parents = torch.tensor([[0, 0, 1, 1, 2, 2]])
    tree = built(torch.tensor([0]), torch.arange(6)[None], scores, parents, 2, 2, 2)
    tree.check()
    assert tree.tokens[0].tolist() == [0, 0, 1]


@pytest.mark.parametrize("bad", [torch.nan, -torch.inf])
def test_descendants_of_an_impossible_node_are_impossible(bad):
    scores = torch.tensor([[bad, -5.0, -0.1, -0.1, -6.0, bad]])
    parents = torch.tensor([[0, 0, 1, 1, 2, 2]])
    tokens = torch.arange(6)[None]
    tree = built(torch.tensor([9]), tokens, scores, parents, 2, 2, 6)
    tree.check()
    assert tree.tokens.tolist() == [[9, 1, 4, 0, 0, 0, 0]]


def test_inputs_are_not_written_to():
    inputs = make_inputs(CASES[-2])
    before = {k: v.clone() for k, v in inputs.items() if isinstance(v, torch.Tensor)}
    tree_build(**inputs)
    for name, tensor in before.items():
        torch.testing.assert_close(inputs[name], tensor, rtol=0, atol=0, equal_nan=True)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from([(2, 3), (3, 4), (4, 4)]), st.sampled_from(KINDS[:4]), st.integers(0, 10**6))
def test_more_nodes_of_the_same_draft_never_accept_less(size, kind, seed):
    """Budgets are nested, so whatever the target draws after each path, paths only get longer."""
    width, depth = size
    most = width + (depth - 1) * width**2
    inputs = make_inputs(BuildCase("nested", width, depth, most, 4, kind), seed)
    # Few tokens, but siblings differ as the children of one top-k do: of twins the lower row wins.
    families = inputs["tokens"].view(4, -1, width)
    inputs["tokens"] = ((families[:, :, :1] + torch.arange(width)) % 7).flatten(1)
    before = torch.zeros(4, dtype=torch.int64)
    for nodes in sorted({1, 2, width, most // 2, most}):
        tree = built(**inputs | {"nodes": nodes})
        draws = draws_by_path(tree)
        length = tree_accept(tree.tokens, tree.parent, tree.valid, draws, depth).length
        assert bool((length >= before).all())
        before = length


def draws_by_path(tree) -> torch.Tensor:
    """A deterministic target: its token depends on the tokens on the path to a row alone."""
    code = tree.tokens[:, :1].expand_as(tree.tokens).clone()
    for level in range(1, tree.max_depth + 1):
        below = code.gather(1, tree.parent) * 31 + tree.tokens
        code = below.where(tree.depth == level, code)
    return (code * 2654435761 >> 7) % 7
