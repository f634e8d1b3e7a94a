# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_eagle_pangu.kernels.draft_batch.cases import CASES, DraftBatchCase, make_inputs
from vllm_eagle_pangu.kernels.draft_batch.reference import draft_batch


def draft_batch_by_hand(inputs):
    """(token, position, hidden row, slot) of each row, first rows, sample rows."""
    rows: list[tuple[int, ...]] = []
    starts, sample_rows = [0], []
    for b, is_tree in enumerate(inputs["is_tree"].tolist()):
        first, end = inputs["query_start"][b : b + 2].tolist()
        if is_tree:
            length = int(inputs["paths"].length[b])
            sample_rows.append(len(rows) + length)
            for i in range(inputs["depth"] + 1):
                linear = min(first + i, end - 1)
                accepted = i <= length
                rows.append(
                    (
                        int(inputs["paths"].output[b, i]) if accepted else 0,
                        int(inputs["positions"][linear]),
                        first + int(inputs["paths"].rows[b, i]) if accepted else first,
                        int(inputs["linear_slots"][linear]) if accepted else -1,
                    )
                )
        elif first < end:
            tokens = [*inputs["input_ids"][first + 1 : end].tolist(), int(inputs["next_tokens"][b])]
            for row, token in zip(range(first, end), tokens, strict=True):
                position, slot = inputs["positions"][row], inputs["linear_slots"][row]
                rows.append((token, int(position), row, int(slot)))
            sample_rows.append(len(rows) - 1)
        else:
            sample_rows.append(len(rows) - 1)
        starts.append(len(rows))
    return rows, starts, sample_rows


def assert_is_by_hand(inputs) -> None:
    got = draft_batch(**inputs)
    rows, starts, sample_rows = draft_batch_by_hand(inputs)
    columns = (got.tokens, got.positions, got.hidden_rows, got.slots)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == rows
    assert got.query_start.tolist() == starts
    assert got.sample_rows.tolist() == sample_rows


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("seed", range(3))
def test_cases_equal_rows_by_hand(case, seed):
    assert_is_by_hand(make_inputs(case, seed))


@settings(deadline=None, max_examples=100)
@given(
    st.integers(1, 6),
    st.lists(st.tuples(st.booleans(), st.integers(1, 12)), min_size=1, max_size=6),
    st.integers(0, 10**6),
)
def test_random_batches_equal_rows_by_hand(depth, requests, seed):
    tree_rows = tuple(n if is_tree else 0 for is_tree, n in requests)
    # One row less than asked for: a request without a tree may have no rows.
    chain_rows = tuple(0 if is_tree else n - 1 for is_tree, n in requests)
    case = DraftBatchCase("random", depth, tree_rows, chain_rows)
    assert_is_by_hand(make_inputs(case, seed))


def test_slots_written_by_a_tree_are_those_of_the_accepted_positions():
    """The drafter's pages grow by the accepted tokens and the bonus, one slot each, no more."""
    inputs = make_inputs(CASES[1])
    got = draft_batch(**inputs)
    first, length = inputs["query_start"].tolist(), inputs["paths"].length.tolist()
    expected = [
        slot for b in range(3) for slot in inputs["linear_slots"][first[b] :][: length[b] + 1]
    ]
    assert got.slots[got.slots >= 0].tolist() == torch.stack(expected).tolist()
