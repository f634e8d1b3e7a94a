# SPDX-License-Identifier: Apache-2.0
"""Tree K/V in a request's pages, behind its prefix, for operators that read nothing else."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from vllm_eagle_pangu.kernels.npu_runtime import contiguous_pages
from vllm_eagle_pangu.kernels.tree_attention.npu_rows import NpuRows
from vllm_eagle_pangu.kernels.tree_attention.pages import PagedKV
from vllm_eagle_pangu.kernels.tree_attention.rows import AttentionRows


def contexts(npu: NpuRows) -> list[int]:
    """Per request, how many keys stand behind each other in pages: prefix and dense ones."""
    return [prefix + keys for prefix, keys in zip(npu.prefixes, npu.keys, strict=True)]


@contextmanager
def staged(
    key: torch.Tensor,  # [X, Hk, K]
    value: torch.Tensor,  # [X, Hk, K]
    pages: PagedKV,
    rows: AttentionRows,
    npu: NpuRows,
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Key and value pages `[blocks, block_size, Hk, K]` with the dense keys written in.

    What stood there is back when the block is left: verifying changes no page.

    Raises ValueError where a block table has no room for them.
    """
    source, slots = rows.once("npu staging", lambda: _staging(rows, npu, pages.shape[2]))
    paged = [contiguous_pages(x) for x in (pages.key, pages.value)]
    flat = [x.flatten(0, 1) for x in paged]
    before = [x[slots] for x in flat]
    for there, dense in zip(flat, (key, value), strict=True):
        there[slots] = npu.dense(dense).flatten(0, 1)[source]
    try:
        yield paged[0], paged[1]
    finally:
        for there, kept in zip(flat, before, strict=True):
            there[slots] = kept


def _staging(
    rows: AttentionRows, npu: NpuRows, block_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Where the dense keys are in `NpuRows.dense`, flattened, and the slots that they get."""
    columns, most = rows.block_table.shape[1], max(contexts(npu))
    if most > columns * block_size:
        raise ValueError(
            f"tree attention on an NPU: a prefix and its tree are {most} keys, and a block table "
            f"of {columns} pages holds {columns * block_size}; choose implementation 'npu', which "
            "writes no node to pages"
        )
    device = rows.block_table.device
    number = torch.arange(npu.sees.shape[2], device=device)
    prefix, keys = (torch.tensor(x, device=device)[:, None] for x in (npu.prefixes, npu.keys))
    at = (prefix + number).clamp(max=columns * block_size - 1)
    slots = rows.block_table.long().gather(1, at // block_size) * block_size + at % block_size
    is_key = number < keys
    return is_key.flatten().nonzero()[:, 0], slots[is_key]
