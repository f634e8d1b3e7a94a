# SPDX-License-Identifier: Apache-2.0
"""Inputs of commit_slots and commit_pages, for tests and benchmarks; results are exact."""

from dataclasses import dataclass
from typing import Any

import torch

from vllm_eagle_pangu.kernels.kv_commit.layers import CommitLayers
from vllm_eagle_pangu.kernels.tree_accept import cases as accept_cases
from vllm_eagle_pangu.kernels.tree_accept.reference import tree_accept
from vllm_eagle_pangu.kernels.tree_attention.pages import PagedKV

CASES = accept_cases.CASES


def make_inputs(
    case: accept_cases.AcceptCase, seed: int = 0, device: str = "cpu"
) -> dict[str, Any]:
    """Keyword arguments of `commit_slots`: distinct slots in random order."""
    paths = tree_accept(**accept_cases.make_inputs(case, seed, device))
    generator = torch.Generator().manual_seed(seed)
    slots = torch.randperm(2 * case.batch * case.rows, generator=generator)
    linear_slots = slots[: case.batch * case.rows].view(case.batch, case.rows)
    return {"path_rows": paths.rows, "linear_slots": linear_slots.to(device)}


@dataclass(frozen=True)
class PagesCase:
    """`layout`: "NHD" pages `[blocks, block_size, Hk, K]` or "HND" `[blocks, Hk, block_size, K]`,
    "vec" or "amx" as vLLM's CPU backend packs them.

    `kept`: chance that a scratch row has a slot.
    """

    name: str
    layers: int = 2
    rows: int = 17
    heads: int = 2
    head_size: int = 64
    block_size: int = 16
    layout: str = "NHD"
    dtype: torch.dtype = torch.bfloat16
    page_dtype: torch.dtype = torch.bfloat16
    kept: float = 0.3


PAGES_CASES = (
    PagesCase("one_row", layers=1, rows=1, heads=1, kept=1.0),
    PagesCase("nothing_kept", kept=0.0),
    PagesCase("everything_kept", kept=1.0),
    PagesCase("many_layers", layers=9, rows=5),
    PagesCase("heads_first", layout="HND"),
    PagesCase("keys_transposed", layout="vec", head_size=80),
    PagesCase("amx_tiles", layout="amx", block_size=32, rows=40),
    PagesCase("many_elements", rows=40, heads=8, head_size=128, layout="vec", kept=0.5),
    PagesCase("odd_sizes", heads=3, head_size=20, block_size=13),
    PagesCase(
        "wide_head", head_size=192, block_size=256, dtype=torch.float16, page_dtype=torch.float16
    ),
    PagesCase("float32", dtype=torch.float32, page_dtype=torch.float32),
)


def writes(implementation: str, case: PagesCase) -> bool:
    """Whether `commit_pages` of that name is made for such pages.

    The GPU's are no tiles, and an NPU copies plain blocks of 16 elements.
    """
    if implementation.startswith("npu"):
        half = case.page_dtype in (torch.float16, torch.bfloat16)
        return half and case.layout == "NHD" and case.head_size % 16 == 0
    return implementation != "triton" or case.layout != "amx"


def make_page_inputs(case: PagesCase, seed: int = 0, device: str = "cpu") -> dict[str, Any]:
    """Keyword arguments of `commit_pages`; rows without a slot are NaN, pages hold a pattern."""
    generator = torch.Generator().manual_seed(seed)
    kept = torch.rand(case.rows, generator=generator) < case.kept
    blocks = 2 + case.rows // case.block_size
    slots = torch.randperm(blocks * case.block_size, generator=generator)[: case.rows]
    slots = slots.where(kept, -1)

    def scratch() -> torch.Tensor:
        rows = torch.randn(case.rows, case.heads, case.head_size, generator=generator)
        return rows.masked_fill(~kept[:, None, None], torch.nan).to(case.dtype).to(device)

    def pages() -> PagedKV:
        heads, block_size, size = case.heads, case.block_size, case.head_size
        if case.layout == "amx":
            return PagedKV.of_amx_tiles(filled(blocks, heads, block_size, 2 * size))
        if case.layout == "NHD":
            key, value = (filled(blocks, block_size, heads, size).transpose(1, 2) for _ in range(2))
        else:
            key, value = (filled(blocks, heads, block_size, size) for _ in range(2))
        return PagedKV(key.mT.contiguous().mT if case.layout == "vec" else key, value)

    def filled(*shape: int) -> torch.Tensor:
        return torch.full(shape, 7.0).to(case.page_dtype).to(device)

    return {
        "layers": CommitLayers(
            keys=[scratch() for _ in range(case.layers)],
            values=[scratch() for _ in range(case.layers)],
            pages=[pages() for _ in range(case.layers)],
        ),
        "slots": slots.to(device),
    }
