# SPDX-License-Identifier: Apache-2.0
"""Further inputs and tolerances of tree_attention, for the tests of its implementations."""

import random
from dataclasses import replace
from typing import Any

import torch

from vllm_eagle_pangu.kernels.tree_attention.cases import AttentionCase, level_case, verify_case
from vllm_eagle_pangu.kernels.tree_attention.pages import pages_of

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
    verify_case("small_window_of_long_context", (32_000,), (3,), starts=(31_871,), block_size=128),
    verify_case("long_windows", (3000, 2500), (5, 9), starts=(1031, 100), block_size=128),
    verify_case("window_in_odd_blocks", (100, 41), (9, 9), starts=(38, 40), block_size=13),
    verify_case("sixteen_requests", tuple(range(0, 480, 30)), (1, 17) * 8, gap=1),
)

_AMX: dict[str, Any] = {"amx_tiles": True, "dtype": torch.bfloat16}
AMX_CASES = (
    verify_case("amx_empty_prefix", (0, 0), (7, 3), block_size=32, **_AMX),
    verify_case("amx_odd_prefixes", (1, 33, 63, 127), (5, 1, 9, 3), block_size=32, **_AMX),
    verify_case("amx_ends_of_tiles", (16, 32, 64, 160), (5,) * 4, block_size=96, gap=2, **_AMX),
    verify_case("amx_long_prefix", (1000, 777), (33, 61), block_size=128, head_size=64, **_AMX),
    verify_case("amx_widest_head", (140,), (17,), head_size=256, block_size=128, **_AMX),
    level_case("amx_level", (300, 5, 0), 4, 3, 5, block_size=64, **_AMX),
    verify_case("amx_windows", (100, 7, 163), (17, 9, 3), starts=(64, 6, 1), block_size=32, **_AMX),
    verify_case("amx_one_key", (50, 33, 32), (5, 5, 5), starts=(49, 32, 31), block_size=32, **_AMX),
    verify_case("amx_no_key", (50, 32, 0), (5, 5, 5), starts=(50, 32, 0), block_size=32, **_AMX),
    verify_case(
        "amx_long_windows", (3000, 2500), (5, 9), starts=(1031, 101), block_size=128, **_AMX
    ),
)


def random_case(
    draw: random.Random,
    head_sizes: tuple[int, ...],
    block_sizes: tuple[int, ...],
    longest_prefix: int = 400,
    most_rows: int = 40,
) -> AttentionCase:
    """A verify pass or a drafter level of 1 to 5 requests, in any of the page layouts.

    Half of them have windows, from anywhere or to the last few keys.
    """
    requests = draw.randint(1, 5)
    kv_heads = draw.choice((1, 2, 3))
    shape: dict[str, Any] = {
        "heads": kv_heads * draw.choice((1, 2, 3, 5)),
        "kv_heads": kv_heads,
        "head_size": draw.choice(head_sizes),
        "block_size": draw.choice(block_sizes),
        "gap": draw.randint(0, 2),
        "dtype": draw.choice((torch.float32, torch.bfloat16, torch.float16)),
    }
    shape["transposed_keys"], shape["heads_in_slots"] = draw.choice(
        ((True, False), (False, True), (False, False))
    )
    lengths = (0, 1, 15, 64, 65, draw.randint(2, longest_prefix))
    prefixes = tuple(min(draw.choice(lengths), longest_prefix) for _ in range(requests))
    if draw.random() < 0.5:
        shape["starts"] = tuple(
            draw.choice((draw.randint(0, prefix), max(0, prefix - draw.randint(0, 20))))
            for prefix in prefixes
        )
    if draw.random() < 0.5:
        rows = tuple(draw.randint(0, most_rows) for _ in range(requests))
        return verify_case("random", prefixes, rows, **shape)
    depth = draw.randint(1, 6)
    level = draw.randint(1, depth)
    return level_case("random", prefixes, draw.randint(1, 8), level, depth, **shape)


def with_garbage_before_windows(inputs: dict[str, Any], case: AttentionCase) -> dict[str, Any]:
    """`make_inputs(case)` with block-table entries that no page has where none is to be read."""
    table = inputs["rows"].block_table.clone()
    for t, (start, prefix) in enumerate(zip(case.starts or (), case.prefixes, strict=True)):
        kept = table[t, (used := pages_of(start, prefix, case.block_size))].clone()
        table[t, ::2], table[t, 1::2] = -(2**31), 2**31 - 1
        table[t, used] = kept
    return inputs | {"rows": replace(inputs["rows"], block_table=table)}


def tolerance(dtype: torch.dtype) -> dict[str, float]:
    """For `torch.testing.assert_close` between implementations that accumulate in float32.

    Low precision: both round a float32 result once, so they differ by one unit in the last place
    where they fall on two sides of a boundary.
    """
    if dtype == torch.float32:
        return {"rtol": 1e-5, "atol": 1e-5}
    return {"rtol": torch.finfo(dtype).eps, "atol": torch.finfo(dtype).eps / 8}
