# SPDX-License-Identifier: Apache-2.0
"""Inputs of tree_attention as vllm-ascend lays out its pages, with room for a tree behind them."""

from dataclasses import replace
from typing import Any

import torch

from vllm_eagle_pangu.kernels.npu_runtime import DTYPES
from vllm_eagle_pangu.kernels.tree_attention.cases import CASES, AttentionCase, make_inputs
from vllm_eagle_pangu.kernels.tree_attention.pages import PagedKV

# Within the limits of all of Ascend's implementations.
SHAPE: dict[str, Any] = {
    "head_size": 128,
    "block_size": 128,
    "transposed_keys": False,
    "heads_in_slots": True,
}


def _on_npu(case: AttentionCase) -> AttentionCase:
    dtype = case.dtype if case.dtype in DTYPES else torch.bfloat16
    return replace(case, **SHAPE, dtype=dtype)


# No fused operator of Ascend's takes a window beside a tree's mask.
NPU_CASES = tuple(_on_npu(case) for case in CASES if case.starts is None)


def npu_inputs(case: AttentionCase, seed: int = 0, device: str = "cpu") -> dict[str, Any]:
    """As `cases.make_inputs`; a request's pages hold its prefix and its dense keys."""
    inputs = make_inputs(case, seed, device)
    size, blocks = case.block_size, inputs["pages"].shape[0]
    room = [-(-(p + k) // size) for p, k in zip(case.prefixes, case.keys, strict=True)]
    held = [-(-p // size) for p in case.prefixes]
    old = inputs["rows"].block_table.cpu()
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
    inputs["rows"] = replace(inputs["rows"], block_table=table.to(device))
    return inputs
