# SPDX-License-Identifier: Apache-2.0
"""Attention of tree rows: a paged prefix that all see, and dense rows under a mask."""

import torch

from vllm_eagle_pangu.kernels.implementations import Implementations
from vllm_eagle_pangu.kernels.tree_attention.pages import PagedKV, pages_of

__all__ = ["IMPLEMENTATIONS", "PagedKV", "prepare", "tree_attention"]

_OP = Implementations(
    __name__, "tree_attention", reference="reference", cpp="cpu_impl", triton="triton_impl"
)
IMPLEMENTATIONS = _OP.names
# Takes the dtype of query, keys and values as well.
prepare = _OP.prepare


def tree_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    pages: PagedKV,
    block_table: torch.Tensor,
    prefix_len: torch.Tensor,
    query_start: torch.Tensor,
    query_count: torch.Tensor,
    key_start: torch.Tensor,
    key_count: torch.Tensor,
    visible: torch.Tensor,
    scale: float,
    output: torch.Tensor,
    implementation: str | None = None,
    check: bool = False,
    prefix_start: torch.Tensor | None = None,
) -> None:
    """Attend the tree rows of T requests, writing their rows of `output`.

    Query rows `query_start[t] .. + query_count[t]` of request t attend the paged keys
    `prefix_start[t] .. prefix_len[t]` (None: from 0 on), found through `block_table[t]`, and those
    of the dense rows `key_start[t] .. + key_count[t]` that `visible[t]` shows them, in one softmax.
    A row that sees nothing becomes 0; output rows of no request are left alone. Query head h uses
    KV head h // (H // Hk). Pages without an attended key are not read, nor are their entries of the
    block table, which may hold anything.

    `query`, `output: [N, H, K]`; `key`, `value: [X, Hk, K]`; `pages`: `[blocks, Hk, block_size,
    K]`, AMX tiles too but for Triton; `block_table: [T, P] int32`; `prefix_len`, `query_start`,
    `query_count`, `key_start`, `key_count`, `prefix_start: [T] int32`; `visible: [T, Rq, Rk] bool`;
    `scale` multiplies the dot products. `check` asserts shapes, dtypes and ranges first, which
    syncs with the device.

    Raises:
        ValueError: `implementation` is not one of `IMPLEMENTATIONS`; None is the device's own.
        RuntimeError: it cannot run on this machine; the message says why and what to do.
    """
    rows = (block_table, prefix_len, query_start, query_count, key_start, key_count, visible)
    if check:
        _check(query, key, value, pages, rows, output, prefix_start)
    run = _OP.of(implementation, query.device)
    run(query, key, value, pages, *rows, scale, output, prefix_start=prefix_start)


def _check(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    pages: PagedKV,
    rows: tuple[torch.Tensor, ...],
    output: torch.Tensor,
    prefix_start: torch.Tensor | None,
) -> None:
    block_table, prefix_len, query_start, query_count, key_start, key_count, visible = rows
    assert output.shape == query.shape, (output.shape, query.shape)
    assert key.shape == value.shape, (key.shape, value.shape)
    assert pages.in_amx_tiles or pages.key.shape == pages.value.shape, pages
    blocks, kv_heads, block_size, head_size = pages.shape
    assert key.shape[1:] == (kv_heads, head_size), (key.shape, pages.shape)
    assert query.shape[2] == head_size and query.shape[1] % kv_heads == 0, query.shape
    assert len({t.dtype for t in (query, key, value, pages.key, pages.value, output)}) == 1

    trees = visible.shape[0]
    first_page_key = torch.zeros_like(prefix_len) if prefix_start is None else prefix_start
    per_tree = (prefix_len, query_start, query_count, key_start, key_count, first_page_key)
    assert visible.dtype == torch.bool, visible.dtype
    assert block_table.dtype == torch.int32 and block_table.shape[0] == trees, block_table.shape
    for tensor in per_tree:
        assert tensor.dtype == torch.int32 and tensor.shape == (trees,), tensor
        assert bool((tensor >= 0).all()), tensor
    assert bool((query_count <= visible.shape[1]).all()), query_count
    assert bool((key_count <= visible.shape[2]).all()), key_count
    assert bool((query_start + query_count <= query.shape[0]).all()), query_start
    assert bool((key_start + key_count <= key.shape[0]).all()), key_start
    assert bool((first_page_key <= prefix_len).all()), (prefix_start, prefix_len)
    spans = zip(block_table, first_page_key.tolist(), prefix_len.tolist(), strict=True)
    for table, start, end in spans:
        assert table.numel() * block_size >= end, (end, block_table.shape)
        used = table[pages_of(start, end, block_size)]
        assert bool(((used >= 0) & (used < blocks)).all()), used
