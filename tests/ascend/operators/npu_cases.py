# SPDX-License-Identifier: Apache-2.0
"""Inputs of tree_attention as vllm-ascend lays out its pages, with room for a tree behind them."""

import random
from dataclasses import replace
from typing import Any

import torch

from vllm_eagle_pangu.kernels.tree_attention.cases import (
    AttentionCase,
    level_case,
    make_inputs,
    verify_case,
)
from vllm_eagle_pangu.kernels.tree_attention.pages import PagedKV

SHAPE: dict[str, Any] = {
    "head_size": 128,
    "block_size": 128,
    "transposed_keys": False,
    "heads_in_slots": True,
}


def random_case(draw: random.Random, dtype: torch.dtype) -> AttentionCase:
    """A verify pass or a drafter level of 1 to 5 requests, in pages of 128."""
    requests, kv_heads = draw.randint(1, 5), draw.choice((1, 2, 3))
    longest = draw.choice((5, 140, 300))
    prefixes = tuple(draw.choice((0, 127, 128, draw.randint(0, longest))) for _ in range(requests))
    options = SHAPE | {
        "heads": kv_heads * draw.randint(1, 4),
        "kv_heads": kv_heads,
        "head_size": draw.choice((64, 128)),
        "gap": draw.choice((0, 0, 2)),
        "dtype": dtype,
    }
    if draw.random() < 0.4:
        width, depth = draw.randint(1, 5), draw.randint(1, 5)
        return level_case("level", prefixes, width, draw.randint(1, depth), depth, **options)
    rows = tuple(draw.randint(1, 24) for _ in range(requests))
    return verify_case("verify", prefixes, rows, **options)


def npu_inputs(case: AttentionCase, seed: int = 0) -> dict[str, Any]:
    """As `cases.make_inputs`; a request's pages hold its prefix and its dense keys."""
    inputs = make_inputs(case, seed)
    size, blocks = case.block_size, inputs["pages"].shape[0]
    room = [-(-(p + k) // size) for p, k in zip(case.prefixes, case.keys, strict=True)]
    held = [-(-p // size) for p in case.prefixes]
    old = inputs["rows"].block_table
    table = torch.full((len(room), max(room, default=0) + 1), -1, dtype=torch.int32)
    table[:, : old.shape[1]] = old[:, : table.shape[1]]
    for t, (have, need) in enumerate(zip(held, room, strict=True)):
        table[t, have:need] = torch.arange(blocks, blocks := blocks + need - have)

    def longer(pages: torch.Tensor) -> torch.Tensor:
        slots_first = pages.transpose(1, 2)
        more = slots_first.new_full((blocks, *slots_first.shape[1:]), torch.nan)
        more[: len(pages)] = slots_first
        return more.transpose(1, 2)

    pages = inputs["pages"]
    inputs["pages"] = PagedKV(longer(pages.key), longer(pages.value))
    inputs["rows"] = replace(inputs["rows"], block_table=table)
    return inputs
