# SPDX-License-Identifier: Apache-2.0
"""vLLM's FLASH_ATTN backend, with tree rows on top."""

from typing import TYPE_CHECKING

import torch
from vllm.v1.attention.backend import AttentionCGSupport
from vllm.v1.attention.backends.flash_attn import (
    FlashAttentionBackend,
    FlashAttentionImpl,
    FlashAttentionMetadataBuilder,
)

from vllm_eagle_pangu.engine.attention import TreeAttentionMixin, TreeBuilderMixin
from vllm_eagle_pangu.engine.strided_pages import strided_page_views
from vllm_eagle_pangu.kernels.tree_attention import PagedKV

if TYPE_CHECKING:
    from vllm.model_executor.layers.attention import Attention


class TreeFlashAttentionMetadataBuilder(TreeBuilderMixin, FlashAttentionMetadataBuilder):
    """A step's trees differ from the last one's: attention stays outside of CUDA graphs."""

    _cudagraph_support = AttentionCGSupport.NEVER


class TreeFlashAttentionImpl(TreeAttentionMixin, FlashAttentionImpl):
    """vLLM's FlashAttention with tree rows."""

    def page_views(self, layer: "Attention", kv_cache: torch.Tensor) -> PagedKV:
        """See `strided_page_views`."""
        return strided_page_views(kv_cache)


class TreeFlashAttentionBackend(FlashAttentionBackend):
    """Registered over vLLM's FLASH_ATTN when the method is chosen."""

    @staticmethod
    def get_impl_cls() -> type["TreeFlashAttentionImpl"]:
        return TreeFlashAttentionImpl

    @staticmethod
    def get_builder_cls() -> type["TreeFlashAttentionMetadataBuilder"]:
        return TreeFlashAttentionMetadataBuilder
