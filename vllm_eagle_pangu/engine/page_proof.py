# SPDX-License-Identifier: Apache-2.0
"""The proof, at start-up, that tree attention reads vLLM's KV pages as vLLM writes them."""

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from vllm.model_executor.layers.attention import Attention

# vLLM's null block: block tables are padded with it, no request ever owns it.
NULL_BLOCK = 0


def require_readable_pages(layer: "Attention") -> None:
    """`readable_pages` of the layer's own cache.

    Raises:
        ValueError: the page layout is not the one that tree attention reads.
    """
    cache = layer.kv_cache
    if not readable_pages(layer, cache):
        tensors = [cache] if isinstance(cache, torch.Tensor) else cache
        described = " and ".join(
            f"a {tensor.dtype} tensor of shape {tuple(tensor.shape)} and strides {tensor.stride()}"
            for tensor in tensors
        )
        raise ValueError(
            f"eagle_pangu: the KV pages of {layer.layer_name} ({described}) have a layout that "
            'tree attention cannot read; use "method": "eagle3" on this machine'
        )


def readable_pages(layer: "Attention", cache: torch.Tensor) -> bool:
    """Whether random K/V that the layer's own op writes to the null block are what we read there.

    `layer`: an attention layer of vLLM's whose impl is ours; `cache`: its own (two on
    Ascend), or a trial of the same layout. Leaves the block zeroed.
    """
    impl = layer.impl
    pages = impl.page_views(layer, cache)
    block_size = pages.shape[2]
    generator = torch.Generator().manual_seed(0)
    shape = (block_size, layer.num_kv_heads, layer.head_size)
    key, value = (
        torch.randn(shape, generator=generator).to(pages.key.device, pages.key.dtype)
        for _ in range(2)
    )
    slots = torch.arange(NULL_BLOCK * block_size, (NULL_BLOCK + 1) * block_size)
    impl.do_kv_cache_update(layer, key, value, cache, slots.to(pages.key.device))
    held = [x.transpose(0, 1) for x in pages.read(NULL_BLOCK)]
    readable = torch.equal(held[0], key) and torch.equal(held[1], value)
    pages.key[NULL_BLOCK] = 0
    pages.value[NULL_BLOCK] = 0
    return readable
