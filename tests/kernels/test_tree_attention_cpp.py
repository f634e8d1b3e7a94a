# SPDX-License-Identifier: Apache-2.0
"""The C++ tree attention against a float64 definition written out here.

Tolerance: its error may be at most twice that of plain torch computing in the tensors' own dtype.
"""

import dataclasses
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from vllm_eagle_pangu.kernels.tree_attention.cases import (
    CASES,
    AttentionCase,
    level_case,
    make_inputs,
    verify_case,
)
from vllm_eagle_pangu.kernels.tree_attention.cpu_impl import cpu_tree_attention
from vllm_eagle_pangu.kernels.tree_attention.pages import PagedKV

DTYPES = (torch.float32, torch.bfloat16, torch.float16)

EXTREMES = (
    verify_case("more_rows_than_an_item", (70, 3), (64, 50), heads=16, kv_heads=2, head_size=64),
    verify_case("more_tree_keys_than_a_tile", (5,), (201,), heads=2, kv_heads=2),
    level_case("level_past_a_tile", (130, 1), width=12, level=8, depth=8, block_size=128),
    verify_case("smallest_block", (37,), (6,), block_size=1),
    verify_case("odd_block", (100, 41), (9, 9), block_size=13),
    verify_case("odd_block_row_major", (100,), (9,), block_size=13, transposed_keys=False),
    verify_case("widest_head", (140,), (17,), head_size=256, block_size=128),
    verify_case("head_of_80", (140,), (17,), head_size=80, block_size=32),
    verify_case("head_of_36_row_major", (90,), (9,), head_size=36, transposed_keys=False),
    verify_case("long_context", (32_000,), (3,), block_size=128, heads=2, kv_heads=1),
    verify_case("sixteen_requests", tuple(range(0, 480, 30)), (1, 17) * 8, gap=1),
)


@pytest.fixture
def threads() -> Iterator[Any]:
    """`torch.set_num_threads`, undone afterwards."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def attend(inputs: dict[str, Any], dtype: torch.dtype) -> torch.Tensor:
    """The definition, computed in `dtype`; rows of no request keep `output`'s values."""
    x = {name: v.to(dtype) for name, v in inputs.items() if name in ("query", "key", "value")}
    output = inputs["output"].to(dtype)
    group = output.shape[1] // x["key"].shape[1] if x["key"].numel() else 1
    for t in range(len(inputs["prefix_len"])):
        prefix, q0, queries, k0, keys = (
            int(inputs[name][t])
            for name in ("prefix_len", "query_start", "query_count", "key_start", "key_count")
        )
        sees = inputs["visible"][t, :queries, :keys]
        unseen = ~sees.any(dim=0)[:, None, None]
        block_size = inputs["pages"].key.shape[2]
        slots = torch.arange(prefix)
        blocks = inputs["block_table"][t][slots // block_size].long()
        past_key, past_value = (
            pages[blocks, :, slots % block_size].to(dtype)
            for pages in (inputs["pages"].key, inputs["pages"].value)
        )
        k = torch.cat([past_key, x["key"][k0 : k0 + keys].masked_fill(unseen, 0)])
        v = torch.cat([past_value, x["value"][k0 : k0 + keys].masked_fill(unseen, 0)])
        k, v = (y.repeat_interleave(group, dim=1).transpose(0, 1) for y in (k, v))
        mask = torch.cat([torch.ones(queries, prefix, dtype=torch.bool), sees], dim=1)
        scores = x["query"][q0 : q0 + queries].transpose(0, 1) @ k.mT * inputs["scale"]
        weights = scores.masked_fill(~mask, -torch.inf).softmax(-1).nan_to_num(0.0)
        output[q0 : q0 + queries] = (weights @ v).transpose(0, 1)
    return output


def rows_of_requests(inputs: dict[str, Any]) -> torch.Tensor:
    """`[N] bool`: the rows that an output is due for."""
    rows = torch.zeros(inputs["output"].shape[0], dtype=torch.bool)
    for start, count in zip(inputs["query_start"], inputs["query_count"], strict=True):
        rows[start : start + count] = True
    return rows


def check(inputs: dict[str, Any]) -> None:
    exact = attend(inputs, torch.float64)
    plain = attend(inputs, inputs["query"].dtype).double()
    cpu_tree_attention(**inputs)
    due = rows_of_requests(inputs)
    assert inputs["output"][~due].isnan().all()
    ours = inputs["output"].double()[due]
    allowed = 2 * largest(plain[due] - exact[due]) + 1e-6
    assert largest(ours - exact[due]) <= allowed


def largest(errors: torch.Tensor) -> float:
    return errors.abs().max().item() if errors.numel() else 0.0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", [*CASES, *EXTREMES], ids=lambda case: case.name)
def test_error_is_at_most_twice_that_of_torch(case: AttentionCase, dtype: torch.dtype) -> None:
    check(make_inputs(dataclasses.replace(case, dtype=dtype)))


@pytest.mark.parametrize("seed", range(40))
def test_error_is_at_most_twice_that_of_torch_on_random_shapes(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(8):
        requests = draw.randint(1, 5)
        kv_heads = draw.choice((1, 2, 3))
        shape: dict[str, Any] = {
            "heads": kv_heads * draw.choice((1, 2, 3, 5)),
            "kv_heads": kv_heads,
            "head_size": draw.choice((32, 40, 48, 64, 96, 128)),
            "block_size": draw.choice((8, 16, 24, 128)),
            "gap": draw.randint(0, 2),
            "transposed_keys": draw.random() < 0.7,
            "dtype": draw.choice(DTYPES),
        }
        prefixes = tuple(
            draw.choice((0, 1, 15, 64, 65, draw.randint(2, 400))) for _ in range(requests)
        )
        if draw.random() < 0.5:
            rows = tuple(draw.randint(1, 40) for _ in range(requests))
            case = verify_case("random", prefixes, rows, **shape)
        else:
            depth = draw.randint(1, 6)
            level = draw.randint(1, depth)
            case = level_case("random", prefixes, draw.randint(1, 8), level, depth, **shape)
        check(make_inputs(case, seed=draw.randint(0, 2**30)))


@pytest.mark.parametrize("count", (1, 2, 3, 4))
def test_any_number_of_threads_splits_long_prefixes_and_merges_them(
    count: int, threads: Any
) -> None:
    threads(count)
    check(make_inputs(verify_case("one_kv_head", (5000,), (17,), heads=3, kv_heads=1)))
    check(make_inputs(verify_case("unequal", (3000, 0, 700), (9, 9, 33), heads=3, kv_heads=1)))


def test_strides_of_every_kind_are_followed() -> None:
    inputs = make_inputs(verify_case("strides", (70, 9), (11, 4), heads=6, gap=1, head_size=48))
    expected = make_inputs(verify_case("strides", (70, 9), (11, 4), heads=6, gap=1, head_size=48))
    cpu_tree_attention(**expected)

    def spread(x: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
        """The same values with every other element of `dims` left out of a larger tensor."""
        large = torch.full([n * (2 if d in dims else 1) for d, n in enumerate(x.shape)], 7.0)
        view = large.to(x.dtype)[
            tuple(slice(None, None, 2 if d in dims else 1) for d in range(x.dim()))
        ]
        return view.copy_(x)

    for name in ("query", "key", "value", "output"):
        inputs[name] = spread(inputs[name], (0, 1))
    inputs["visible"] = spread(inputs["visible"], (0, 1, 2))
    inputs["block_table"] = spread(inputs["block_table"], (0,))
    pages = inputs["pages"]
    inputs["pages"] = PagedKV(spread(pages.key, (0, 2, 3)), spread(pages.value, (1, 3)))
    cpu_tree_attention(**inputs)
    torch.testing.assert_close(inputs["output"], expected["output"], rtol=0, atol=0, equal_nan=True)


def test_inputs_stay_as_they_were() -> None:
    inputs = make_inputs(CASES[4])
    tensors = {name: x for name, x in inputs.items() if isinstance(x, torch.Tensor)}
    tensors |= {"page_key": inputs["pages"].key, "page_value": inputs["pages"].value}
    del tensors["output"]
    before = {name: x.clone() for name, x in tensors.items()}
    cpu_tree_attention(**inputs)
    for name, x in tensors.items():
        assert torch.equal(x.nan_to_num(123.0), before[name].nan_to_num(123.0)), name


def test_a_row_that_sees_nothing_gives_zeros() -> None:
    inputs = make_inputs(verify_case("blind", (0,), (5,), heads=2, kv_heads=1))
    inputs["visible"][0, 3] = False
    inputs["visible"][0, :, 3] = False
    cpu_tree_attention(**inputs)
    assert (inputs["output"][3] == 0).all()
    assert (inputs["output"][[0, 1, 2, 4]] != 0).all()


def test_a_request_whose_rows_all_see_nothing_gives_zeros() -> None:
    inputs = make_inputs(verify_case("blind", (0, 20), (5, 5)))
    inputs["visible"][:] = False
    cpu_tree_attention(**inputs)
    assert (inputs["output"][:5] == 0).all()
    check(make_inputs(verify_case("blind", (0, 20), (5, 5))) | {"visible": inputs["visible"]})


def test_nan_in_a_live_key_shows_in_the_rows_that_see_it_and_only_there() -> None:
    inputs = make_inputs(verify_case("nan", (20,), (4,), heads=2, kv_heads=1))
    inputs["visible"][0] = torch.eye(4, dtype=torch.bool)
    inputs["key"][2] = torch.nan
    cpu_tree_attention(**inputs)
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
        "block_table": block_table,
        "prefix_len": torch.tensor(prefixes, dtype=torch.int32),
        "query_start": starts[:-1],
        "query_count": count,
        "key_start": starts[:-1],
        "key_count": count,
        "visible": causal,
        "scale": K**-0.5,
        "output": torch.full_like(q, torch.nan),
    }
    check(inputs)

    write(k, v, [slots(t, n, n + rows) for t, n in enumerate(prefixes)])
    lengths = inputs["prefix_len"] + rows
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
