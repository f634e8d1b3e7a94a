# SPDX-License-Identifier: Apache-2.0
"""Reading vLLM's CPU KV pages: the views, and the proof at start-up that they are right."""

import functools

import torch
from vllm import _custom_ops as ops

from vllm_eagle_pangu.kernels.tree_attention import PagedKV

# The layout of vLLM's "vec" instruction set: K transposed inside a block, V row-major.
TREE_ISA = "vec"


def page_views(kv_cache: torch.Tensor) -> PagedKV:
    """Key and value views `[blocks, Hk, block_size, K]` of one layer's cache tensor.

    `kv_cache: [blocks, Hk, block_size, 2K]` holds, per block and head, `K * block_size` key
    elements (element d of slot s at `d * block_size + s`) and then as many value elements
    (row-major). Source: vllm/v1/attention/backends/cpu_attn.py and csrc/cpu/cpu_attn_vec.hpp.
    """
    blocks, heads, block_size, width = kv_cache.shape
    head_size = width // 2
    assert kv_cache.stride(2) == width and kv_cache.stride(3) == 1, kv_cache.stride()
    block_stride, head_stride = kv_cache.stride(0), kv_cache.stride(1)
    shape = (blocks, heads, block_size, head_size)
    offset = kv_cache.storage_offset()
    return PagedKV(
        key=kv_cache.as_strided(shape, (block_stride, head_stride, 1, block_size), offset),
        value=kv_cache.as_strided(
            shape,
            (block_stride, head_stride, head_size, 1),
            offset + block_size * head_size,
        ),
    )


@functools.cache
def require_readable_pages(
    isa: str, num_kv_heads: int, head_size: int, block_size: int, dtype: torch.dtype
) -> None:
    """Write random K/V with vLLM's own op and read them back through `page_views`.

    Raises:
        ValueError: this machine's page layout is not the one that tree attention reads.
    """
    generator = torch.Generator().manual_seed(0)
    shape = (block_size + 1, num_kv_heads, head_size)
    key, value = (torch.randn(shape, generator=generator).to(dtype) for _ in range(2))
    kv_cache = torch.zeros(3, num_kv_heads, block_size, 2 * head_size, dtype=dtype)
    slots = torch.arange(block_size - 1, 2 * block_size)
    packed = kv_cache.view(3, num_kv_heads, block_size * 2, head_size)
    key_pages, value_pages = packed.chunk(2, dim=2)
    ops.cpu_attn_reshape_and_cache(
        key,
        value,
        key_pages,
        value_pages,
        slots,
        isa,
        k_scale=1.0,
        v_scale=1.0,
        kv_cache_dtype="auto",
    )
    views = page_views(kv_cache)
    block, slot = slots // block_size, slots % block_size
    if not (
        torch.equal(views.key[block, :, slot], key)
        and torch.equal(views.value[block, :, slot], value)
    ):
        raise ValueError(
            f"eagle_pangu: vLLM's KV pages on this CPU (isa={isa!r}, head size {head_size}, "
            f"block_size={block_size}, {dtype}) have a layout that tree attention cannot read; "
            'use "method": "eagle3" on this machine'
        )
