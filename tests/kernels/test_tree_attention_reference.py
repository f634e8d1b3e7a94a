# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_eagle_pangu.kernels.tree_attention import tree_attention
from vllm_eagle_pangu.kernels.tree_attention.cases import (
    CASES,
    level_case,
    make_inputs,
    verify_case,
)

from ..attention_cases import AMX_CASES, tolerance, with_garbage_before_windows


def attend_by_hand(inputs) -> torch.Tensor:
    """Row by row and head by head in float64: only what a row sees is ever read."""
    pages, rows, output = inputs["pages"], inputs["rows"], inputs["output"].double()
    block_size, group = pages.shape[2], inputs["query"].shape[1] // inputs["key"].shape[1]
    page_keys, page_values = pages.read(slice(None))
    for t, prefix in enumerate(rows.prefix_len.tolist()):
        slots = torch.arange(0 if rows.prefix_start is None else int(rows.prefix_start[t]), prefix)
        blocks = rows.block_table[t, slots // block_size].long()
        for i in range(int(rows.query_count[t])):
            row = int(rows.query_start[t]) + i
            sees = rows.visible[t, i, : int(rows.key_count[t])]
            dense = int(rows.key_start[t]) + sees.nonzero()[:, 0]
            for h in range(inputs["query"].shape[1]):
                paged = (blocks, h // group, slots % block_size)
                keys = torch.cat((page_keys[paged], inputs["key"][dense, h // group]))
                values = torch.cat((page_values[paged], inputs["value"][dense, h // group]))
                scores = keys.double() @ inputs["query"][row, h].double() * inputs["scale"]
                # Of no keys at all the sum is 0.
                output[row, h] = scores.softmax(dim=0) @ values.double()
    return output


def assert_is_by_hand(case, seed: int = 0) -> None:
    inputs = make_inputs(case, seed)
    expected = attend_by_hand(inputs)
    tree_attention(**inputs, implementation="reference", check=True)
    # NaN is equal to NaN: rows of no request stay as they were, and no other row is NaN.
    torch.testing.assert_close(
        inputs["output"].double(), expected, **tolerance(case.dtype), equal_nan=True
    )
    written = (~inputs["output"].isnan()).all(dim=(1, 2)).sum()
    assert written == sum(case.queries)


@pytest.mark.parametrize("case", [*CASES, *AMX_CASES], ids=lambda case: case.name)
def test_cases_equal_attention_by_hand(case):
    assert_is_by_hand(case)


@settings(deadline=None, max_examples=25)
@given(
    st.lists(
        st.tuples(st.integers(0, 20), st.integers(1, 6), st.floats(0, 1)), min_size=1, max_size=3
    ),
    st.sampled_from([(1, 1), (2, 1), (4, 2), (3, 3)]),
    st.sampled_from([1, 4, 16]),
    st.booleans(),
    st.booleans(),
    st.integers(0, 10**6),
)
def test_random_batches_equal_attention_by_hand(
    requests, heads, block_size, transposed, windows, seed
):
    case = verify_case(
        "random",
        tuple(prefix for prefix, *_ in requests),
        tuple(rows for _, rows, _ in requests),
        starts=tuple(round(share * prefix) for prefix, _, share in requests) if windows else None,
        heads=heads[0],
        kv_heads=heads[1],
        head_size=8,
        block_size=block_size,
        transposed_keys=transposed,
        gap=seed % 3,
    )
    assert_is_by_hand(case, seed)


def test_row_that_sees_nothing_is_zero():
    inputs = make_inputs(verify_case("blind", (0, 5), (3, 3)))
    inputs["rows"].visible[:, 1] = False
    tree_attention(**inputs, implementation="reference", check=True)
    assert not inputs["output"][1].any()
    torch.testing.assert_close(inputs["output"], attend_by_hand(inputs).float())


@pytest.mark.parametrize(
    "case",
    [verify_case("padded", (20, 0), (16, 9)), level_case("dead", (20, 3), 4, 3, 4)],
    ids=lambda case: case.name,
)
def test_rows_that_nobody_sees_change_nothing(case):
    """Padding: their K/V is NaN in `make_inputs`; anything else must give the same bits."""
    inputs = make_inputs(case)
    tree_attention(**inputs, implementation="reference")
    expected = inputs["output"].clone()
    for name in ("key", "value"):
        assert inputs[name].isnan().any()
        inputs[name] = inputs[name].nan_to_num(nan=1e30)
    tree_attention(**inputs, implementation="reference")
    assert torch.equal(inputs["output"], expected)


def test_windows_from_0_are_no_windows():
    inputs = make_inputs(CASES[4])
    tree_attention(**inputs, implementation="reference")
    expected = inputs["output"].clone()
    zeros = torch.zeros_like(inputs["rows"].prefix_len)
    inputs["rows"] = replace(inputs["rows"], prefix_start=zeros)
    tree_attention(**inputs, implementation="reference", check=True)
    torch.testing.assert_close(inputs["output"], expected, rtol=0, atol=0, equal_nan=True)


def test_block_table_before_a_window_may_hold_anything():
    case = verify_case("window", (50, 40), (5, 3), starts=(33, 40))
    inputs = with_garbage_before_windows(make_inputs(case), case)
    expected = attend_by_hand(inputs)
    tree_attention(**inputs, implementation="reference", check=True)
    torch.testing.assert_close(inputs["output"].double(), expected, **tolerance(case.dtype))


def test_unknown_implementation_is_refused_by_name():
    with pytest.raises(ValueError, match="'fast' is unknown; use one of 'reference', 'cpp'"):
        tree_attention(**make_inputs(CASES[0]), implementation="fast")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("visible", lambda t: t.int()),
        ("prefix_len", lambda t: t.long()),
        ("prefix_len", lambda t: t + 10**6),
        ("block_table", lambda t: t + 10**6),
        ("query_count", lambda t: t + 1),
        ("key_start", lambda t: t + 1),
        ("key_start", lambda t: t - 10**6),
        ("prefix_start", lambda t: t.long()),
        ("prefix_start", lambda t: t[:1]),
        ("prefix_start", lambda t: t - 4),
        ("prefix_start", lambda t: t + 3),
    ],
)
def test_check_refuses_rows_that_an_implementation_would_read_out_of_range(name, change):
    inputs = make_inputs(verify_case("checked", (20, 5), (5, 5), starts=(18, 3)))
    tree_attention(**inputs, implementation="reference", check=True)
    with pytest.raises(AssertionError):
        inputs["rows"] = replace(inputs["rows"], **{name: change(getattr(inputs["rows"], name))})
        tree_attention(**inputs, implementation="reference", check=True)


@pytest.mark.parametrize(
    ("name", "change"), [("output", lambda t: t.double()), ("key", lambda t: t[:, :1])]
)
def test_check_refuses_tensors_that_do_not_fit_each_other(name, change):
    inputs = make_inputs(verify_case("checked", (20, 5), (5, 5), starts=(18, 3)))
    inputs[name] = change(inputs[name])
    with pytest.raises(AssertionError):
        tree_attention(**inputs, implementation="reference", check=True)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("block_table", lambda t: t.T.contiguous().T),
        ("key_count", lambda t: t.repeat_interleave(2)[::2]),
        ("query_start", lambda t: t[:1].expand(2)),
    ],
)
def test_rows_that_kernels_would_read_with_other_strides_are_refused(name, change):
    rows = make_inputs(verify_case("strided", (20, 5), (5, 5)))["rows"]
    with pytest.raises(AssertionError):
        replace(rows, **{name: change(getattr(rows, name))})
