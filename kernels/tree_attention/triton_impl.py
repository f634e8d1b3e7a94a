# SPDX-License-Identifier: Apache-2.0
"""Tree attention in Triton: the paged prefix, then the tree's dense rows, in one running softmax.

A program attends one tile of (tree row, query head) pairs that share a KV head, so that a key is
loaded once for the whole group. Where the batch alone would not fill the chip, the prefix is split
over programs first (flash-decoding) and the second kernel merges what they found. Nothing here
waits for the device, and launches depend on shapes alone, so calls can be captured in a CUDA graph.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import triton

from vllm_eagle_pangu.kernels.tree_attention.call import AttentionCall
from vllm_eagle_pangu.kernels.tree_attention.tiling import prefix_splits, processors, tile_for
from vllm_eagle_pangu.kernels.tree_attention.triton_prefix import prefix_split_kernel
from vllm_eagle_pangu.kernels.tree_attention.triton_tree import tree_attention_kernel
from vllm_eagle_pangu.kernels.triton_runtime import interpreting


def tree_attention(call: AttentionCall, splits: int | None = None) -> None:
    """Writes the attention of every tree request's query rows into `output`.

    Shapes as in `AttentionCall`; float32, bfloat16 or float16, accumulated in
    float32; any strides but that a head's elements are adjacent outside of pages. Indices are
    trusted; slots outside of `prefix_start .. prefix_len` are not read, and values of dense rows
    that nobody sees are never multiplied.

    `splits`: programs per prefix; by default as many as fill the GPU. With more than one, buffers
    of T*Hk*splits*Rq*(H/Hk)*(K+1) float32 are allocated: by default at most 2 tiles per
    multiprocessor, some 20 MB on an H200.
    """
    for launch in launches(call, splits):
        launch.kernel[launch.grid](**launch.arguments, **launch.options)


@dataclass(frozen=True)
class Launch:
    """One kernel launch; `arguments` by name, constexprs among them."""

    kernel: Any
    grid: tuple[int, int, int]
    arguments: dict[str, Any]
    options: dict[str, int]


def launches(call: AttentionCall, splits: int | None = None) -> Iterator[Launch]:
    """What `tree_attention` launches, in order."""
    query, key, value, pages, rows, scale, output = call
    assert not pages.in_amx_tiles, "a CPU's pages in AMX tiles are read by C++ and the reference"
    call.check_sizes()
    assert query.dtype in (torch.float32, torch.bfloat16, torch.float16), query.dtype
    assert {x.stride(2) for x in (query, key, value, output)} <= {1}, (
        "the elements of a head must be adjacent in query, key, value and output"
    )
    visible = rows.visible
    _, Hk, block_size, K = pages.shape
    T, most_rows = visible.shape[0], visible.shape[1] * (query.shape[1] // Hk)
    if T == 0 or most_rows == 0:
        return
    tile = tile_for(most_rows, K, query.dtype)
    tiles = triton.cdiv(most_rows, tile.rows)
    if splits is None:
        capacity = rows.block_table.shape[1] * block_size
        splits = prefix_splits(tiles * Hk * T, capacity, processors(query.device))
    split, size = splits > 1, (T, Hk, splits, most_rows)
    every = {
        **vars(rows),
        **{"query": query, "key": key, "value": value, "output": output},
        **{"page_key": pages.key, "page_value": pages.value},
        # A bool is a byte, which Triton loads on every backend.
        "visible": visible.view(torch.int8),
        "partial": query.new_empty((*size, K), dtype=torch.float32) if split else None,
        "partial_lse": query.new_empty(size, dtype=torch.float32) if split else None,
        "scale": scale * math.log2(math.e),
        "splits": splits,
        "most_rows": most_rows,
        **_strides("query", query, "row", "head"),
        **_strides("key", key, "row", "head"),
        **_strides("value", value, "row", "head"),
        **_strides("output", output, "row", "head"),
        **_strides("page_key", pages.key, "block", "head", "slot", "dim"),
        **_strides("page_value", pages.value, "block", "head", "slot", "dim"),
        **_strides("visible", visible, "request", "row", "column"),
        "table_stride": rows.block_table.stride(0),
        "WINDOW": rows.prefix_start is not None,
        "SPLIT": split,
        "HEADS": Hk,
        "GROUP": query.shape[1] // Hk,
        "K": K,
        "PAGE": block_size,
        "BLOCK_M": tile.rows,
        "BLOCK_N": tile.keys,
        "BLOCK_D": tile.dense_keys,
        "BLOCK_K": tile.head,
        "DENSE_STAGES": tile.dense_stages,
        "INTERPRET_BF16": interpreting() and query.dtype == torch.bfloat16,
    }
    options = {"num_warps": tile.warps, "num_stages": tile.stages}
    grids = {prefix_split_kernel: (tiles, Hk * splits, T)} if split else {}
    for kernel, grid in (grids | {tree_attention_kernel: (tiles, Hk, T)}).items():
        arguments = {name: every[name] for name in kernel.arg_names}
        yield Launch(kernel, grid, arguments, options)


def _strides(name: str, tensor: torch.Tensor, *dims: str) -> dict[str, int]:
    return {f"{name}_{dim}_stride": tensor.stride(d) for d, dim in enumerate(dims)}
