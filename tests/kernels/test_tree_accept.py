# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_eagle_pangu.core.tree import TreeBatch
from vllm_eagle_pangu.kernels.tree_accept.cases import CASES, AcceptCase, make_inputs
from vllm_eagle_pangu.kernels.tree_accept.reference import tree_accept

from ..trees import tree_of_parents
from .inputs import of_tree, tree_of


def walk_by_hand(tree: TreeBatch, draws: torch.Tensor, b: int) -> tuple[list[int], list[int]]:
    """Rows and tokens of request b: from each row to its first child that carries the draw."""
    rows, output = [0], []
    while True:
        token = int(draws[b, rows[-1]])
        output.append(token)
        children = [
            k
            for k in range(1, tree.rows)
            if tree.valid[b, k] and tree.parent[b, k] == rows[-1] and tree.tokens[b, k] == token
        ]
        if not children:
            return rows, output
        rows.append(children[0])


def assert_is_walk(inputs) -> None:
    tree = tree_of(inputs)
    tree.check()
    depth, paths = inputs["depth"], tree_accept(**inputs)
    for b in range(inputs["draws"].shape[0]):
        rows, output = walk_by_hand(tree, inputs["draws"], b)
        padding = depth + 1 - len(rows)
        assert paths.rows[b].tolist() == rows + [0] * padding
        assert paths.output[b].tolist() == output + [-1] * padding
        assert paths.length[b] == len(rows) - 1


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_cases_equal_walk_by_hand(case):
    assert_is_walk(make_inputs(case))


@settings(deadline=None, max_examples=80)
@given(
    st.integers(2, 20),
    st.integers(1, 6),
    st.sampled_from([2, 5, 1000]),
    st.sampled_from([0.5, 1.0]),
    st.integers(0, 10**6),
)
def test_random_trees_equal_walk_by_hand(rows, depth, vocab, agreement, seed):
    assert_is_walk(make_inputs(AcceptCase("random", rows, depth, 3, vocab, agreement), seed))


def test_cases_reach_every_length():
    """Guards the other tests: cases in which every walk ends at once would hold nothing."""
    lengths = {
        int(length)
        for case in CASES
        for seed in range(3)
        for length in tree_accept(**make_inputs(case, seed)).length
    }
    assert lengths >= set(range(7))


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6))
def test_contents_of_padding_rows_change_nothing(seed):
    inputs = make_inputs(AcceptCase("padded", 15, 4, 4, 4), seed)
    expected = tree_accept(**inputs)
    valid, generator = inputs["valid"], torch.Generator().manual_seed(seed)
    noise = torch.randint(4, valid.shape, generator=generator)
    inputs["tokens"] = inputs["tokens"].where(valid, noise)
    inputs["draws"] = inputs["draws"].where(valid, noise.flip(1))
    paths = tree_accept(**inputs)
    for name in ("rows", "length", "output"):
        assert torch.equal(getattr(paths, name), getattr(expected, name))


def test_draw_equal_to_the_roots_own_token_is_a_bonus_not_a_loop():
    tree = tree_of_parents(torch.tensor([[7, 1]]), torch.tensor([[0, 0]]), 3)
    paths = tree_accept(**of_tree(tree), draws=torch.tensor([[7, 7]]), depth=3)
    assert paths.output.tolist() == [[7, -1, -1, -1]]


def test_tree_cut_to_its_root_emits_one_token():
    inputs = make_inputs(CASES[4])
    inputs |= of_tree(tree_of(inputs).cut(torch.zeros(7, dtype=torch.int64)))
    paths = tree_accept(**inputs)
    assert paths.length.tolist() == [0] * 7
    assert torch.equal(paths.output[:, 0], inputs["draws"][:, 0])
