# SPDX-License-Identifier: Apache-2.0
"""The C++ tree attention against the definition in float64.

Tolerance: its error may be at most twice that of plain torch computing in the tensors' own dtype.
"""

import dataclasses
import functools
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from vllm_eagle_pangu.kernels import tree_attention as face
from vllm_eagle_pangu.kernels.tree_attention.cases import (
    CASES,
    AttentionCase,
    make_inputs,
    verify_case,
)
from vllm_eagle_pangu.kernels.tree_attention.comparison import assert_as_exact_as_torch
from vllm_eagle_pangu.kernels.tree_attention.pages import PagedKV
from vllm_eagle_pangu.kernels.tree_attention.rows import AttentionRows

from ..attention_cases import AMX_CASES, EXTREMES, random_case, with_garbage_before_windows

tree_attention = functools.partial(face.tree_attention, implementation="cpp")

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.fixture
def threads() -> Iterator[Any]:
    """`torch.set_num_threads`, undone afterwards."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def check(inputs: dict[str, Any]) -> None:
    assert_as_exact_as_torch(tree_attention, inputs)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", [*CASES, *EXTREMES], ids=lambda case: case.name)
def test_error_is_at_most_twice_that_of_torch(case: AttentionCase, dtype: torch.dtype) -> None:
    check(make_inputs(dataclasses.replace(case, dtype=dtype)))


@pytest.mark.parametrize("seed", range(40))
def test_error_is_at_most_twice_that_of_torch_on_random_shapes(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(8):
        case = random_case(draw, (32, 40, 48, 64, 96, 128), (8, 16, 24, 128))
        check(make_inputs(case, seed=draw.randint(0, 2**30)))


@pytest.mark.parametrize("case", AMX_CASES, ids=lambda case: case.name)
def test_amx_tiles_error_is_at_most_twice_that_of_torch(case: AttentionCase) -> None:
    check(make_inputs(case))


@pytest.mark.parametrize("seed", range(10))
def test_amx_tiles_error_is_at_most_twice_that_of_torch_on_random_shapes(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(8):
        case = random_case(draw, (32, 64, 96, 128), (32, 64, 96, 128))
        case = dataclasses.replace(case, amx_tiles=True, dtype=torch.bfloat16)
        check(make_inputs(case, seed=draw.randint(0, 2**30)))


@pytest.mark.parametrize(
    "case",
    [case for case in AMX_CASES if case.starts is None],
    ids=lambda case: case.name,
)
def test_amx_tiles_give_the_bits_of_strided_pages(case: AttentionCase) -> None:
    inputs, strided = make_inputs(case), make_inputs(dataclasses.replace(case, amx_tiles=False))
    assert inputs["pages"].in_amx_tiles and not strided["pages"].in_amx_tiles
    tree_attention(**inputs)
    tree_attention(**strided)
    torch.testing.assert_close(inputs["output"], strided["output"], rtol=0, atol=0, equal_nan=True)


def test_amx_tiles_before_a_window_and_outside_of_a_prefix_are_not_read() -> None:
    """The block table says nothing there, and slots hold NaN."""
    rows, starts = (5, 3, 5, 5), (4000, 33, 40, 63)
    prefixes, amx = (5000, 90, 40, 64), {"amx_tiles": True, "dtype": torch.bfloat16}
    case = verify_case("window", prefixes, rows, starts=starts, block_size=32, **amx)
    inputs, expected = with_garbage_before_windows(make_inputs(case), case), make_inputs(case)
    tree_attention(**inputs)
    tree_attention(**expected)
    assert torch.equal(inputs["output"], expected["output"])
    assert not inputs["output"].isnan().any()


@pytest.mark.skipif(
    not torch.cpu._is_avx512_bf16_supported(), reason="as CPUs with AMX have AVX512-BF16"
)
@pytest.mark.parametrize("amx_tiles", (True, False))
def test_probabilities_are_rounded_before_values_are_weighed(amx_tiles: bool) -> None:
    """As vLLM's op for AMX does: two that bfloat16 does not tell apart cancel to 0."""
    shape = {"heads": 1, "kv_heads": 1, "block_size": 32, "dtype": torch.bfloat16}
    inputs = make_inputs(verify_case("rounded", (3,), (1,), amx_tiles=amx_tiles, **shape))
    inputs["rows"].key_count[:] = 0
    inputs["query"][:] = 1
    key, value = torch.zeros(2, 32, 32, dtype=torch.bfloat16)
    # Relative to the first one's, 0.8756 and 0.8752: both are 0.875 in bfloat16.
    key[1:3, 0] = -17 / 128
    key[2, 1] = -(2.0**-11)
    value[1], value[2] = 1, -1
    pages = inputs["pages"]
    block = int(inputs["rows"].block_table[0, 0])
    if amx_tiles:
        key, value = key.unflatten(0, (-1, 16)), value.unflatten(0, (-1, 2))
        key, value = key.unflatten(2, (-1, 2)), value.unflatten(2, (-1, 16))
    pages.key[block, 0], pages.value[block, 0] = key, value
    tree_attention(**inputs | {"scale": 1.0})
    assert (inputs["output"] == 0).all()


@pytest.mark.parametrize("count", (1, 2, 3, 4))
def test_any_number_of_threads_splits_long_prefixes_and_merges_them(
    count: int, threads: Any
) -> None:
    threads(count)
    check(make_inputs(verify_case("one_kv_head", (5000,), (17,), heads=3, kv_heads=1)))
    check(make_inputs(verify_case("unequal", (3000, 0, 700), (9, 9, 33), heads=3, kv_heads=1)))
    case = verify_case("windows", (5000, 0, 3000), (9, 9, 3), starts=(2501, 0, 1), kv_heads=1)
    check(make_inputs(case))
    amx: dict[str, Any] = {"amx_tiles": True, "dtype": torch.bfloat16}
    check(make_inputs(verify_case("amx", (5000,), (17,), kv_heads=1, block_size=128, **amx)))


def test_strides_of_every_kind_are_followed() -> None:
    inputs = make_inputs(verify_case("strides", (70, 9), (11, 4), heads=6, gap=1, head_size=48))
    expected = make_inputs(verify_case("strides", (70, 9), (11, 4), heads=6, gap=1, head_size=48))
    tree_attention(**expected)

    def spread(x: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
        """The same values with every other element of `dims` left out of a larger tensor."""
        large = torch.full([n * (2 if d in dims else 1) for d, n in enumerate(x.shape)], 7.0)
        view = large.to(x.dtype)[
            tuple(slice(None, None, 2 if d in dims else 1) for d in range(x.dim()))
        ]
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
    tree_attention(**inputs)
    torch.testing.assert_close(inputs["output"], expected["output"], rtol=0, atol=0, equal_nan=True)


def test_windows_from_0_are_no_windows() -> None:
    inputs, expected = make_inputs(CASES[4]), make_inputs(CASES[4])
    tree_attention(**expected)
    zeros = torch.zeros_like(inputs["rows"].prefix_len)
    inputs["rows"] = dataclasses.replace(inputs["rows"], prefix_start=zeros)
    tree_attention(**inputs)
    torch.testing.assert_close(inputs["output"], expected["output"], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_block_table_before_a_window_is_not_read(dtype: torch.dtype) -> None:
    case = verify_case(
        "window", (5000, 90, 40, 64), (5, 3, 5, 5), starts=(4000, 33, 40, 63), dtype=dtype
    )
    inputs, expected = with_garbage_before_windows(make_inputs(case), case), make_inputs(case)
    tree_attention(**inputs)
    tree_attention(**expected)
    assert torch.equal(inputs["output"], expected["output"])


def test_inputs_stay_as_they_were() -> None:
    inputs = make_inputs(CASES[4])
    tensors = {name: x for name, x in inputs.items() if isinstance(x, torch.Tensor)}
    tensors |= {"page_key": inputs["pages"].key, "page_value": inputs["pages"].value}
    rows = vars(inputs["rows"]).items()
    tensors |= {name: x for name, x in rows if isinstance(x, torch.Tensor)}
    del tensors["output"]
    before = {name: x.clone() for name, x in tensors.items()}
    tree_attention(**inputs)
    for name, x in tensors.items():
        assert torch.equal(x.nan_to_num(123.0), before[name].nan_to_num(123.0)), name


def test_a_row_that_sees_nothing_gives_zeros() -> None:
    inputs = make_inputs(verify_case("blind", (0,), (5,), heads=2, kv_heads=1))
    inputs["rows"].visible[0, 3] = False
    inputs["rows"].visible[0, :, 3] = False
    tree_attention(**inputs)
    assert (inputs["output"][3] == 0).all()
    assert (inputs["output"][[0, 1, 2, 4]] != 0).all()


def test_a_request_whose_rows_all_see_nothing_gives_zeros() -> None:
    inputs = make_inputs(verify_case("blind", (0, 20), (5, 5)))
    inputs["rows"].visible[:] = False
    tree_attention(**inputs)
    assert (inputs["output"][:5] == 0).all()
    check(make_inputs(verify_case("blind", (0, 20), (5, 5))) | {"rows": inputs["rows"]})


def test_nan_in_a_live_key_shows_in_the_rows_that_see_it_and_only_there() -> None:
    inputs = make_inputs(verify_case("nan", (20,), (4,), heads=2, kv_heads=1))
    inputs["rows"].visible[0] = torch.eye(4, dtype=torch.bool)
    inputs["key"][2] = torch.nan
    tree_attention(**inputs)
    assert inputs["output"][2].isnan().all()
    assert not inputs["output"][[0, 1, 3]].isnan().any()


@pytest.mark.parametrize("magnitude", (1e-4, 30.0, 1e4))
def test_scores_of_any_size_are_weighed_right(magnitude: float) -> None:
    inputs = make_inputs(verify_case("large", (150,), (9,), block_size=128))
    inputs["query"] *= magnitude
    check(inputs)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("block_size", (32, 128))
def test_reads_the_pages_that_vllm_writes(dtype: torch.dtype, block_size: int) -> None:
    ops = pytest.importorskip("vllm._custom_ops")
    prefixes, rows, H, Hk, K = (70, 0, 129), 9, 6, 2, 64
    T, P = len(prefixes), 6
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(T * rows, heads, K, generator=draw).to(dtype) for heads in (H, Hk, Hk))
    past = torch.randn(2, sum(prefixes), Hk, K, generator=draw).to(dtype)
    cache = torch.zeros(T * P, Hk, block_size, 2 * K, dtype=dtype)
    key_cache, value_cache = cache.view(T * P, Hk, 2 * block_size, K).chunk(2, dim=2)
    block_table = torch.randperm(T * P, generator=draw).view(T, P).int()

    def slots(t: int, first: int, end: int) -> torch.Tensor:
        position = torch.arange(first, end)
        return block_table[t][position // block_size].long() * block_size + position % block_size

    def write(key: torch.Tensor, value: torch.Tensor, where: list[torch.Tensor]) -> None:
        ops.cpu_attn_reshape_and_cache(key, value, key_cache, value_cache, torch.cat(where), "vec")

    write(past[0], past[1], [slots(t, 0, n) for t, n in enumerate(prefixes)])
    transposed = key_cache.as_strided(
        (T * P, Hk, block_size, K),
        (*key_cache.stride()[:2], 1, block_size),
        key_cache.storage_offset(),
    )
    starts = torch.arange(0, T * rows + 1, rows, dtype=torch.int32)
    count = torch.full((T,), rows, dtype=torch.int32)
    causal = torch.ones(rows, rows, dtype=torch.bool).tril().expand(T, -1, -1)
    inputs = {
        "query": q,
        "key": k,
        "value": v,
        "pages": PagedKV(transposed, value_cache),
        "rows": AttentionRows(
            block_table=block_table,
            prefix_len=torch.tensor(prefixes, dtype=torch.int32),
            query_start=starts[:-1],
            query_count=count,
            key_start=starts[:-1],
            key_count=count,
            visible=causal,
        ),
        "scale": K**-0.5,
        "output": torch.full_like(q, torch.nan),
    }
    check(inputs)

    write(k, v, [slots(t, n, n + rows) for t, n in enumerate(prefixes)])
    lengths = inputs["rows"].prefix_len + rows
    plan = ops.cpu_attn_get_scheduler_metadata(
        T, H, Hk, K, lengths, dtype, starts, True, -1, "vec", True
    )
    theirs = torch.empty_like(q)
    ops.cpu_attention_with_kv_cache(
        q, key_cache, value_cache, theirs, starts, lengths, K**-0.5, True, None, -1, block_table,
        0.0, plan, None,
    )  # fmt: skip
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}[dtype]
    torch.testing.assert_close(inputs["output"], theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.skipif(
    not torch.cpu._is_avx512_bf16_supported(), reason="vLLM's build that knows AMX runs on these"
)
@pytest.mark.parametrize(("block_size", "head_size"), [(32, 32), (96, 64), (128, 128)])
def test_reads_the_pages_that_vllm_writes_for_amx(block_size: int, head_size: int) -> None:
    """Writing them takes no AMX."""
    ops = pytest.importorskip("vllm._custom_ops")
    case = verify_case(
        "amx", (block_size + 7, 0, 3 * block_size), (9, 3, 5), heads=6, kv_heads=2,
        block_size=block_size, head_size=head_size, dtype=torch.bfloat16, gap=1,
    )  # fmt: skip
    strided = make_inputs(case)
    key, value = strided["pages"].read(slice(None))
    blocks, kv_heads = key.shape[:2]
    cache = torch.zeros(blocks, kv_heads, block_size, 2 * head_size, dtype=torch.bfloat16)
    split = cache.view(blocks, kv_heads, 2 * block_size, head_size).chunk(2, dim=2)
    rows = [x.transpose(1, 2).flatten(0, 1) for x in (key, value)]
    ops.cpu_attn_reshape_and_cache(*rows, *split, torch.arange(blocks * block_size), "amx")

    by_formula = make_inputs(dataclasses.replace(case, amx_tiles=True))["pages"]
    pages = PagedKV.of_amx_tiles(cache)
    for name in ("key", "value"):
        written, expected = (getattr(x, name).view(torch.int16) for x in (pages, by_formula))
        assert torch.equal(written, expected)
    inputs = make_inputs(case) | {"pages": pages}
    tree_attention(**inputs)
    tree_attention(**strided)
    torch.testing.assert_close(inputs["output"], strided["output"], rtol=0, atol=0, equal_nan=True)
