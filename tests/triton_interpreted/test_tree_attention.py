# SPDX-License-Identifier: Apache-2.0
"""Tree attention in Triton, interpreted, against a float64 definition.

Tolerance: its error may be at most twice that of plain torch computing in the tensors' own dtype.
"""

import dataclasses
import functools
import random
from typing import Any

import pytest
import torch

from vllm_eagle_pangu.kernels import tree_attention as face
from vllm_eagle_pangu.kernels.tree_attention import triton_impl
from vllm_eagle_pangu.kernels.tree_attention.cases import (
    CASES,
    AttentionCase,
    level_case,
    make_inputs,
    verify_case,
)
from vllm_eagle_pangu.kernels.tree_attention.comparison import assert_as_exact_as_torch
from vllm_eagle_pangu.kernels.tree_attention.pages import PagedKV

from ..attention_cases import EXTREMES, random_case, with_garbage_before_windows
from ..kernels.conftest import poisoned_memory  # noqa: F401

HEAD_SIZES = (8, 20, 32, 36, 64, 80, 96, 128)
BLOCK_SIZES = (1, 2, 7, 13, 16, 32, 128, 256)
MORE_EXTREMES = (
    verify_case("chain_of_one", (0, 1, 64, 65), (1, 1, 1, 1), heads=8, kv_heads=2),
    verify_case("tree_of_129", (33,), (129,), heads=2, kv_heads=1, heads_in_slots=True),
    verify_case("head_of_192", (40, 0), (5, 3), head_size=192, transposed_keys=False),
    verify_case("page_of_256", (255, 256, 257), (2, 2, 2), block_size=256, heads_in_slots=True),
    verify_case("requests_without_rows", (70, 20, 0), (0, 5, 0), gap=1),
    verify_case("no_request_has_rows", (70, 20), (0, 0), gap=1),
    verify_case("group_of_seven", (70, 9), (10, 3), heads=14, kv_heads=2, head_size=64),
)


def tree_attention(splits: int | None = None, **inputs: Any) -> None:
    triton_impl.tree_attention(face.AttentionCall(**inputs), splits)


def seen_elsewhere(inputs: dict[str, Any]) -> dict[str, Any]:
    """The mask with True wherever no request looks: past its rows and past its keys."""
    rows = inputs["rows"]
    visible = rows.visible.clone()
    counts = (rows.query_count.tolist(), rows.key_count.tolist())
    for t, (queries, keys) in enumerate(zip(*counts, strict=True)):
        visible[t, queries:] = True
        visible[t, :, keys:] = True
    return inputs | {"rows": dataclasses.replace(rows, visible=visible)}


def check(inputs: dict[str, Any], splits: int | None = None) -> None:
    def run(**given: Any) -> None:
        tree_attention(**seen_elsewhere(given), splits=splits)

    assert_as_exact_as_torch(run, inputs)


@pytest.mark.parametrize("splits", (None, 3))
@pytest.mark.parametrize("case", [*CASES, *EXTREMES, *MORE_EXTREMES], ids=lambda case: case.name)
def test_error_is_at_most_twice_that_of_torch(case: AttentionCase, splits: int | None) -> None:
    if case.name == "long_context":
        case = dataclasses.replace(case, prefixes=(9_000,))
    if splits:
        case = dataclasses.replace(case, dtype=torch.float16)
    check(make_inputs(case), splits)


@pytest.mark.parametrize("seed", range(13))
def test_error_is_at_most_twice_that_of_torch_on_random_shapes(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(6):
        case = random_case(draw, HEAD_SIZES, BLOCK_SIZES, longest_prefix=150, most_rows=8)
        inputs = make_inputs(case, seed=draw.randint(0, 2**30))
        check(inputs, splits=draw.randint(1, 5))


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float16), ids=str)
def test_wide_heads_and_whole_trees_in_every_dtype(dtype: torch.dtype) -> None:
    check(make_inputs(verify_case("wide", (70,), (65,), head_size=256, kv_heads=4, dtype=dtype)), 2)
    check(make_inputs(verify_case("tree", (130,), (65,), heads=4, kv_heads=1, dtype=dtype)), 2)


@pytest.mark.parametrize("splits", (1, 2))
def test_strides_of_every_kind_are_followed(splits: int) -> None:
    case = verify_case("strides", (70, 9), (11, 4), heads=6, gap=1, head_size=48)
    inputs, expected = make_inputs(case), make_inputs(case)
    tree_attention(**expected, splits=splits)

    def spread(x: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
        """The same values with every other element of `dims` left out of a larger tensor."""
        large = x.new_full([n * (2 if d in dims else 1) for d, n in enumerate(x.shape)], 7)
        view = large[tuple(slice(None, None, 2 if d in dims else 1) for d in range(x.dim()))]
        return view.copy_(x)

    for name in ("query", "key", "value", "output"):
        inputs[name] = spread(inputs[name], (0, 1))
    rows = inputs["rows"]
    inputs["rows"] = dataclasses.replace(
        rows,
        visible=spread(rows.visible, (0, 1, 2)),
        block_table=spread(rows.block_table, (0,)),
    )
    pages = inputs["pages"]
    inputs["pages"] = PagedKV(spread(pages.key, (0, 2, 3)), spread(pages.value, (1, 3)))
    tree_attention(**inputs, splits=splits)
    torch.testing.assert_close(inputs["output"], expected["output"], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("splits", (1, 3))
def test_windows_from_0_are_no_windows(splits: int) -> None:
    inputs, expected = make_inputs(CASES[4]), make_inputs(CASES[4])
    tree_attention(**expected, splits=splits)
    zeros = torch.zeros_like(inputs["rows"].prefix_len)
    inputs["rows"] = dataclasses.replace(inputs["rows"], prefix_start=zeros)
    tree_attention(**inputs, splits=splits)
    torch.testing.assert_close(inputs["output"], expected["output"], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("splits", (1, 3))
def test_block_table_before_a_window_is_not_read(splits: int) -> None:
    case = verify_case("window", (500, 90, 40, 64), (5, 3, 5, 5), starts=(300, 33, 40, 63))
    inputs, expected = with_garbage_before_windows(make_inputs(case), case), make_inputs(case)
    tree_attention(**inputs, splits=splits)
    tree_attention(**expected, splits=splits)
    assert torch.equal(inputs["output"], expected["output"])


@pytest.mark.parametrize("splits", (1, 3))
def test_inputs_stay_as_they_were(splits: int) -> None:
    inputs = make_inputs(CASES[4])
    tensors = {name: x for name, x in inputs.items() if isinstance(x, torch.Tensor)}
    tensors |= {"page_key": inputs["pages"].key, "page_value": inputs["pages"].value}
    rows = vars(inputs["rows"]).items()
    tensors |= {name: x for name, x in rows if isinstance(x, torch.Tensor)}
    del tensors["output"]
    before = {name: x.clone() for name, x in tensors.items()}
    tree_attention(**inputs, splits=splits)
    for name, x in tensors.items():
        torch.testing.assert_close(x, before[name], rtol=0, atol=0, equal_nan=True, msg=name)


@pytest.mark.parametrize("splits", (1, 2))
def test_a_row_that_sees_nothing_gives_zeros(splits: int) -> None:
    inputs = make_inputs(verify_case("blind", (0, 20), (5, 5), heads=2, kv_heads=1))
    inputs["rows"].visible[:, 3] = False
    tree_attention(**inputs, splits=splits)
    assert (inputs["output"][3] == 0).all()
    assert (inputs["output"][[0, 1, 2, 4, 5, 6, 7, 8, 9]] != 0).all()


def test_a_request_whose_rows_all_see_nothing_gives_zeros() -> None:
    inputs = make_inputs(verify_case("blind", (0, 20), (5, 5)))
    inputs["rows"].visible[:] = False
    tree_attention(**inputs)
    assert (inputs["output"][:5] == 0).all()
    assert inputs["output"][5:].isfinite().all()


def test_nan_in_a_live_key_shows_in_the_rows_that_see_it_and_only_there() -> None:
    inputs = make_inputs(verify_case("nan", (20,), (4,), heads=2, kv_heads=1))
    inputs["rows"].visible[0] = torch.eye(4, dtype=torch.bool)
    inputs["key"][2] = torch.nan
    tree_attention(**inputs)
    assert inputs["output"][2].isnan().all()
    assert not inputs["output"][[0, 1, 3]].isnan().any()


@pytest.mark.parametrize("splits", (1, 3))
def test_nan_in_a_prefix_key_shows_in_every_row(splits: int) -> None:
    inputs = make_inputs(verify_case("nan", (70, 70), (4, 4), heads=2, kv_heads=1))
    inputs["pages"].key[inputs["rows"].block_table[1, 1].item(), 0, 2] = torch.nan
    tree_attention(**inputs, splits=splits)
    assert inputs["output"][4:].isnan().all()
    assert not inputs["output"][:4].isnan().any()


@pytest.mark.parametrize("splits", (1, 3))
@pytest.mark.parametrize("magnitude", (1e-4, 30.0, 1e4))
def test_scores_of_any_size_are_weighed_right(magnitude: float, splits: int) -> None:
    inputs = make_inputs(verify_case("large", (150,), (9,), block_size=128))
    inputs["query"] *= magnitude
    check(inputs, splits)


def test_more_splits_than_tiles_of_keys_leave_the_last_ones_empty() -> None:
    for prefixes in ((1, 0), (64, 33), (129, 31)):
        check(make_inputs(verify_case("short", prefixes, (3, 3))), splits=5)


def test_the_face_runs_it_when_asked() -> None:
    inputs = make_inputs(level_case("level", (40, 9), width=4, level=2, depth=4, starts=(17, 9)))
    face.prepare("triton", torch.float32)
    run = functools.partial(face.tree_attention, implementation="triton", check=True)
    assert_as_exact_as_torch(run, inputs)
