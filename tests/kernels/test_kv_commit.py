# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_eagle_pangu.kernels.kv_commit.cases import CASES, make_inputs
from vllm_eagle_pangu.kernels.kv_commit.reference import assert_written_once, commit_slots
from vllm_eagle_pangu.kernels.tree_accept.cases import AcceptCase


def slots_by_hand(inputs) -> torch.Tensor:
    slots = torch.full_like(inputs["linear_slots"], -1)
    for b, path in enumerate(inputs["path_rows"].tolist()):
        for i, row in enumerate(path):
            if row > 0:
                slots[b, row] = inputs["linear_slots"][b, i]
    return slots


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_cases_equal_commit_by_hand(case):
    inputs = make_inputs(case)
    assert torch.equal(commit_slots(**inputs), slots_by_hand(inputs))


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 20), st.integers(1, 6), st.integers(0, 10**6))
def test_random_paths_equal_commit_by_hand(rows, depth, seed):
    inputs = make_inputs(AcceptCase("random", rows, depth, 3, 3), seed)
    assert torch.equal(commit_slots(**inputs), slots_by_hand(inputs))


def test_paths_of_stride_depth_plus_one_are_not_read_with_stride_nodes():
    """Regression: with more nodes than levels, the second request read the first one's path."""
    paths = torch.tensor([[0, 4, 0], [0, 2, 5]])
    linear = torch.tensor([[10, 11, 12, 13, 14, 15], [20, 21, 22, 23, 24, 25]])
    assert commit_slots(paths, linear).tolist() == [
        [-1, -1, -1, -1, 11, -1],
        [-1, -1, 21, -1, -1, 22],
    ]


def test_tree_of_fewer_nodes_than_levels_commits_within_its_rows():
    paths = torch.tensor([[0, 1, 0, 0, 0]])
    assert commit_slots(paths, torch.tensor([[7, 8]])).tolist() == [[-1, 8]]


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**6))
def test_rejected_and_padding_rows_never_reach_the_pages(seed):
    """Whatever the rows off the path hold, pages get the path's K/V in linear order alone."""
    inputs = make_inputs(AcceptCase("pages", 11, 4, 3, 4), seed)
    slots = commit_slots(**inputs)
    key, value = torch.randn(2, *slots.shape, 2, 4)
    for tensor in (key, value):
        tensor[slots < 0] = torch.nan
    cache = torch.zeros(2, 66, 2, 4)
    expected = cache.clone()
    for b, path in enumerate(inputs["path_rows"].tolist()):
        for i, row in enumerate(path):
            if row > 0:
                slot = inputs["linear_slots"][b, i]
                expected[0, slot], expected[1, slot] = key[b, row], value[b, row]
    assert_written_once(slots)
    kept = slots >= 0
    cache[:, slots[kept]] = torch.stack((key[kept], value[kept]))
    assert torch.equal(cache, expected)


def test_check_refuses_to_write_a_slot_twice():
    with pytest.raises(AssertionError, match="twice"):
        assert_written_once(torch.tensor([2, -1, 2]))
    assert_written_once(torch.tensor([-1, -1, 2]))
