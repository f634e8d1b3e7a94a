# SPDX-License-Identifier: Apache-2.0
from copy import deepcopy
from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_eagle_pangu.core.tree import TreeBatch
from vllm_eagle_pangu.kernels.mask import ancestor_table

from ..trees import tree_of_parents

MAX_DEPTH = 5
ROWS = st.integers(1, 14)


@st.composite
def trees(draw, batch=2, rows=ROWS):
    """Trees no deeper than MAX_DEPTH with rows in random topological order, then padding."""
    R = draw(rows)
    parent = torch.zeros(batch, R, dtype=torch.int64)
    for b in range(batch):
        depth = [0]
        for k in range(1, R):
            allowed = [j for j in range(k) if depth[j] < MAX_DEPTH]
            parent[b, k] = draw(st.sampled_from(allowed))
            depth.append(depth[parent[b, k]] + 1)
    tokens = torch.tensor(
        draw(st.lists(st.integers(0, 5), min_size=batch * R, max_size=batch * R))
    ).view(batch, R)
    nodes = torch.tensor(draw(st.lists(st.integers(0, R - 1), min_size=batch, max_size=batch)))
    valid = torch.arange(R) <= nodes[:, None]
    return tree_of_parents(tokens, parent, MAX_DEPTH, valid)


def walk_up(tree: TreeBatch, b: int, k: int) -> list[int]:
    """Row k and its ancestors, the root last."""
    path = [k]
    while path[-1] != 0:
        path.append(int(tree.parent[b, path[-1]]))
    return path


def rows_of(tree: TreeBatch) -> list[tuple[int, int]]:
    return [(b, k) for b in range(tree.batch_size) for k in range(tree.rows)]


def assert_same(left: TreeBatch, right: TreeBatch) -> None:
    for field in fields(TreeBatch):
        a, b = getattr(left, field.name), getattr(right, field.name)
        same = torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
        assert same, field.name


@given(trees())
def test_random_trees_pass_the_check(tree):
    tree.check()


@given(trees())
def test_depth_counts_the_way_to_the_root(tree):
    for b, k in rows_of(tree):
        assert tree.depth[b, k] == (len(walk_up(tree, b, k)) - 1 if tree.valid[b, k] else 0)


@given(trees())
def test_ancestor_table_is_the_walk_up_and_stays_at_the_root(tree):
    ancestors = ancestor_table(tree.parent, MAX_DEPTH)
    for b, k in rows_of(tree):
        path = walk_up(tree, b, k)
        path += [0] * (MAX_DEPTH + 1 - len(path))
        assert ancestors[b, :, k].tolist() == path


@given(trees())
def test_a_valid_row_sees_its_path_and_padding_sees_the_root_alone(tree):
    for b, k in rows_of(tree):
        expected = set(walk_up(tree, b, k)) if tree.valid[b, k] else {0}
        assert set(tree.visible[b, k].nonzero()[:, 0].tolist()) == expected


@given(trees())
def test_positions_go_on_behind_the_prefix(tree):
    positions = tree.positions(torch.tensor([10, 0]))
    for b in range(2):
        for k in range(tree.rows):
            depth = len(walk_up(tree, b, k)) - 1 if bool(tree.valid[b, k]) else 0
            assert positions[b, k] == [10, 0][b] + depth


@given(trees(), st.data())
def test_any_prefix_is_a_valid_tree(tree, data):
    counts = data.draw(st.lists(st.integers(0, tree.rows + 2), min_size=2, max_size=2))
    cut = tree.cut(torch.tensor(counts))
    cut.check()
    assert cut.node_count.tolist() == [
        min(c, n) for c, n in zip(counts, tree.node_count.tolist(), strict=True)
    ]
    for b in range(2):
        kept = slice(0, int(cut.node_count[b]) + 1)
        for name in ("tokens", "parent", "depth", "score"):
            assert torch.equal(getattr(cut, name)[b, kept], getattr(tree, name)[b, kept])
        assert torch.equal(cut.visible[b, kept, kept], tree.visible[b, kept, kept])


@given(trees())
def test_cut_leaves_the_tree_it_was_cut_from_alone(tree):
    before = deepcopy(tree)
    tree.cut(torch.zeros(2, dtype=torch.int64))
    assert_same(tree, before)


@given(trees(), trees())
def test_stack_pads_and_select_takes_apart(left, right):
    both = TreeBatch.stack([left, right])
    both.check()
    assert both.rows == max(left.rows, right.rows)
    assert_same(both.select(torch.tensor([0, 1])), left.padded(both.rows))
    assert_same(both.select(torch.tensor([3, 2])), right.padded(both.rows).select([1, 0]))


def two_levels() -> TreeBatch:
    """Root, two children, a grandchild under the second, one row of padding."""
    tokens = torch.tensor([[9, 1, 2, 3, 0]])
    parent = torch.tensor([[0, 0, 0, 2, 0]])
    return tree_of_parents(tokens, parent, 2, torch.arange(5)[None] < 4)


@pytest.mark.parametrize(
    ("field", "row", "value", "message"),
    [
        ("parent", 1, 5, "parents are rows"),
        ("parent", 1, -1, "parents are rows"),
        ("parent", 2, 3, "no cycle"),
        ("parent", 3, 3, "no cycle"),
        ("parent", 3, 0, "one deeper"),
        ("depth", 3, 1, "one deeper"),
        ("depth", 0, 1, "the root is row 0"),
        ("parent", 0, 1, "the root is row 0"),
        ("valid", 0, False, "the root is row 0"),
        ("valid", 2, False, "parent is valid"),
        ("valid", 1, False, "padding comes after"),
        ("tokens", 4, 7, "padding has token"),
        ("score", 4, 0.0, "padding scores"),
        ("score", 3, -torch.inf, "padding scores"),
        ("score", 3, torch.nan, "NaN"),
    ],
)
def test_check_names_the_broken_invariant(field, row, value, message):
    tree = two_levels()
    tree.check()
    getattr(tree, field)[0, row] = value
    with pytest.raises(AssertionError, match=message):
        tree.check()


@pytest.mark.parametrize(("row", "column"), [(3, 1), (0, 3), (4, 4), (1, 4)])
def test_check_refuses_a_mask_that_shows_too_much(row, column):
    tree = two_levels()
    tree.visible[0, row, column] = True
    with pytest.raises(AssertionError, match="sees itself and its ancestors"):
        tree.check()


def test_check_refuses_a_tree_deeper_than_declared():
    with pytest.raises(AssertionError, match="deeper"):
        replace(two_levels(), max_depth=1).check()


@settings(max_examples=20)
@given(trees(rows=st.integers(2, 14)))
def test_rows_that_are_not_valid_become_padding(tree):
    again = tree_of_parents(
        tree.tokens.where(tree.valid, 77), tree.parent.where(tree.valid, 1), MAX_DEPTH, tree.valid
    )
    assert_same(again, tree)
