# SPDX-License-Identifier: Apache-2.0
"""The checks, once target and head are loaded, that tree attention reaches each of their layers and
reads the KV pages as vLLM writes them."""

from collections.abc import Collection
from typing import TYPE_CHECKING

import torch
from vllm.config import get_layers_from_vllm_config
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

from vllm_eagle_pangu.config import refusal
from vllm_eagle_pangu.engine.attention import TreeAttentionMixin

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.model_executor.layers.attention import Attention

# vLLM's null block: block tables are padded with it, no request ever owns it.
NULL_BLOCK = 0


def require_tree_attention(vllm_config: "VllmConfig", draft_layers: Collection[str]) -> None:
    """Refuse attention layers that run on another implementation than ours.

    vLLM chooses a backend layer by layer while it builds a model, and the head's apart from the
    target's. `draft_layers`: names of the head's.

    Raises:
        ValueError: which layer, the backend that it got, and the mend.
    """
    layers = get_layers_from_vllm_config(vllm_config, AttentionLayerBase)
    for name, layer in layers.items():
        impl = getattr(layer, "impl", None)
        if isinstance(impl, TreeAttentionMixin):
            continue
        whose, option = "target", "the option --attention-backend"
        if name in draft_layers:
            whose, option = "head", '"attention_backend" in speculative_config'
        backend = layer.get_attn_backend().get_name()
        raise refusal(
            "attention_backend",
            backend,
            f"the {whose}'s layer {name} was built with vLLM's {type(impl).__name__}, on which "
            "tree attention does not stand",
            f"name a backend that it stands on with {option} (docs/refusals.md), or use "
            '"method": "eagle3"',
        )


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
