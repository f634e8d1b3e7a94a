# SPDX-License-Identifier: Apache-2.0
"""Tree K/V in a request's pages, behind its prefix, for operators that read nothing else."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from vllm_eagle_pangu.kernels.npu_runtime import contiguous_pages
from vllm_eagle_pangu.kernels.tree_attention.npu_rows import NpuRows
from vllm_eagle_pangu.kernels.tree_attention.pages import PagedKV


def contexts(npu: NpuRows) -> list[int]:
    """Per request, how many keys stand behind each other in pages: prefix and dense ones."""
    return [prefix + keys for prefix, keys in zip(npu.prefixes, npu.keys, strict=True)]


@contextmanager
def staged(
    key: torch.Tensor,  # [X, Hk, K]
    value: torch.Tensor,  # [X, Hk, K]
    pages: PagedKV,
    block_table: torch.Tensor,  # [B, P] int32
    npu: NpuRows,
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Key and value pages `[blocks, block_size, Hk, K]` with the dense keys written in.

    What stood there is back when the block is left: verifying changes no page.

    Raises ValueError where a block table has no room for them.
    """
    size, most = pages.shape[2], max(contexts(npu))
    if most > block_table.shape[1] * size:
        raise ValueError(
            f"tree attention on an NPU: a prefix and its tree are {most} keys, and a block table "
            f"of {block_table.shape[1]} pages holds {block_table.shape[1] * size}; choose "
            "implementation 'npu', which writes no node to pages"
        )
    number = torch.arange(npu.sees.shape[2], device=key.device)
    prefix, keys = (torch.tensor(x, device=key.device) for x in (npu.prefixes, npu.keys))
    is_key = number < keys[:, None]
    at = (prefix[:, None] + number).clamp(max=block_table.shape[1] * size - 1)
    slots = block_table.long().gather(1, at // size) * size + at % size
    slots = slots[is_key]
    paged = [contiguous_pages(x) for x in (pages.key, pages.value)]
    flat = [x.flatten(0, 1) for x in paged]
    before = [x[slots] for x in flat]
    for there, dense in zip(flat, (key, value), strict=True):
        there[slots] = npu.dense(dense)[is_key]
    try:
        yield paged[0], paged[1]
    finally:
        for there, kept in zip(flat, before, strict=True):
            there[slots] = kept
