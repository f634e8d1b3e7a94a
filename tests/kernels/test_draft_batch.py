# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_eagle_pangu.kernels.draft_batch.cases import CASES, DraftBatchCase, make_inputs
from vllm_eagle_pangu.kernels.draft_batch.reference import draft_batch
from vllm_eagle_pangu.kernels.draft_batch.rows import MaskRows
from vllm_eagle_pangu.kernels.tree_attention import AttentionCall, AttentionRows, PagedKV
from vllm_eagle_pangu.kernels.tree_attention.reference import tree_attention

MASK_COUNTS = (0, 1, 3, 7)


def draft_batch_by_hand(inputs):
    """(token, position, hidden row, slot) of each row, first rows, sample rows, mask rows."""
    rows: list[tuple[int, ...]] = []
    mask_rows: list[tuple[int, ...]] = []
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
        if (mask := inputs["mask_rows"]) is not None:
            after = rows[sample_rows[b]][1] + 1 if first < end else 0
            mask_rows += [(mask.token, after + j, 0, -1) for j in range(mask.count)]
        starts.append(len(rows))
    return rows, starts, sample_rows, mask_rows


def assert_is_by_hand(inputs) -> None:
    got = draft_batch(**inputs)
    rows, starts, sample_rows, mask_rows = draft_batch_by_hand(inputs)
    columns = (got.tokens, got.positions, got.hidden_rows, got.slots)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == rows + mask_rows
    assert got.first_mask == len(rows)
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
    st.sampled_from(MASK_COUNTS),
    st.integers(0, 10**6),
)
def test_random_batches_equal_rows_by_hand(depth, requests, masks, seed):
    tree_rows = tuple(n if is_tree else 0 for is_tree, n in requests)
    # One row less than asked for: a request without a tree may have no rows.
    chain_rows = tuple(0 if is_tree else n - 1 for is_tree, n in requests)
    case = DraftBatchCase("random", depth, tree_rows, chain_rows, masks)
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


# ---- mask rows ----


@pytest.mark.parametrize("count", MASK_COUNTS[1:])
def test_mask_rows_leave_the_other_rows_as_they_are(count):
    for case in CASES[:7]:
        inputs = make_inputs(case)
        rows = inputs["rows"]
        plain = draft_batch(**inputs)
        masked = draft_batch(**inputs | {"mask_rows": MaskRows(count, 9)})
        for name in ("tokens", "positions", "hidden_rows", "slots"):
            assert torch.equal(getattr(masked, name)[:rows], getattr(plain, name)), name
        assert masked.tokens.shape[0] == rows + count * len(case.tree_rows)
        assert (masked.first_mask, plain.first_mask) == (rows, rows)
        assert torch.equal(masked.query_start, plain.query_start)
        assert torch.equal(masked.sample_rows, plain.sample_rows)
        assert torch.equal(masked.mask_visible, torch.ones(count, count).tril().bool())
        assert plain.mask_visible is None


def test_mask_rows_attend_as_if_their_request_went_on_with_them():
    """`DraftRows` as `tree_attention` takes it, against plain causal attention."""
    heads, head_size, block_size, pages = 2, 8, 4, 6
    inputs = make_inputs(DraftBatchCase("attended", 4, (13, 0, 2), (0, 7, 0), mask_rows=3))
    first = inputs["query_start"].long()
    inputs["positions"] = torch.cat([torch.arange(n) + 5 for n in first.diff().tolist()])
    rows = draft_batch(**inputs)
    batch, count = 3, 3
    torch.manual_seed(0)
    key, value = torch.randn(2, len(rows.tokens), heads, head_size)
    paged = PagedKV(*torch.randn(2, batch * pages, heads, block_size, head_size))
    table = torch.randperm(batch * pages).view(batch, pages).int()
    query, output = torch.randn_like(key), torch.full_like(key, torch.nan)
    start = (rows.first_mask + torch.arange(batch) * count).int()
    size = torch.full_like(start, count)
    visible = rows.mask_visible.expand(batch, -1, -1)
    prefix = rows.positions[rows.first_mask :: count].int()
    assert torch.equal(prefix, rows.positions[rows.sample_rows].int() + 1)
    attention_rows = AttentionRows(table, prefix, start, size, start, size, visible)
    tree_attention(AttentionCall(query, key, value, paged, attention_rows, 0.3, output))
    for b in range(batch):
        dense = slice(start[b], start[b] + count)
        keys, values = (
            torch.cat((page[table[b].long()].transpose(1, 2).flatten(0, 1)[: prefix[b]], x[dense]))
            for page, x in ((paged.key, key), (paged.value, value))
        )
        for j in range(count):
            seen = int(prefix[b]) + j + 1
            scores = torch.einsum("hk,xhk->hx", query[dense][j], keys[:seen]) * 0.3
            expected = torch.einsum("hx,xhk->hk", scores.softmax(-1), values[:seen])
            torch.testing.assert_close(output[dense][j], expected)


@pytest.mark.parametrize(("count", "token"), [(0, 5), (-1, 5), (3, -1)])
def test_mask_rows_of_no_use_are_refused(count, token):
    with pytest.raises(AssertionError):
        MaskRows(count, token)
