# SPDX-License-Identifier: Apache-2.0
"""The proof, at start-up, that tree attention reads vLLM's KV pages as vLLM writes them."""

from typing import Any

import torch

# vLLM's null block: block tables are padded with it, no request ever owns it.
NULL_BLOCK = 0


def require_readable_pages(layer: Any) -> None:
    """Write random K/V to the null block with the layer's own op and read it through our views.

    `layer`: an attention layer of vLLM's whose impl is ours, with its cache in place. Leaves the
    block zeroed.

    Raises:
        ValueError: the page layout is not the one that tree attention reads.
    """
    cache, impl = layer.kv_cache, layer.impl
    pages = impl.pages(cache)
    block_size = pages.key.shape[2]
    generator = torch.Generator().manual_seed(0)
    shape = (block_size, layer.num_kv_heads, layer.head_size)
    key, value = (
        torch.randn(shape, generator=generator).to(cache.device, cache.dtype) for _ in range(2)
    )
    slots = torch.arange(NULL_BLOCK * block_size, (NULL_BLOCK + 1) * block_size)
    impl.do_kv_cache_update(layer, key, value, cache, slots.to(cache.device))
    held = (pages.key[NULL_BLOCK].transpose(0, 1), pages.value[NULL_BLOCK].transpose(0, 1))
    readable = torch.equal(held[0], key) and torch.equal(held[1], value)
    pages.key[NULL_BLOCK] = 0
    pages.value[NULL_BLOCK] = 0
    if not readable:
        raise ValueError(
            f"eagle_pangu: the KV pages of {layer.layer_name} (a {cache.dtype} tensor of shape "
            f"{tuple(cache.shape)} and strides {cache.stride()}) have a layout that tree attention "
            'cannot read; use "method": "eagle3" on this machine'
        )
