# SPDX-License-Identifier: Apache-2.0
"""vLLM's TRITON_ATTN backend, with tree rows on top."""

from typing import TYPE_CHECKING

import torch
from vllm.v1.attention.backend import AttentionCGSupport
from vllm.v1.attention.backends.triton_attn import (
    TritonAttentionBackend,
    TritonAttentionImpl,
    TritonAttentionMetadataBuilder,
)

from vllm_eagle_pangu.engine.attention import TreeAttentionMixin, TreeBuilderMixin
from vllm_eagle_pangu.engine.strided_pages import strided_page_views
from vllm_eagle_pangu.kernels.tree_attention import PagedKV

if TYPE_CHECKING:
    from vllm.model_executor.layers.attention import Attention


class TreeTritonAttentionMetadataBuilder(TreeBuilderMixin, TritonAttentionMetadataBuilder):
    """A step's trees differ from the last one's: attention stays outside of CUDA graphs."""

    _cudagraph_support = AttentionCGSupport.NEVER


class TreeTritonAttentionImpl(TreeAttentionMixin, TritonAttentionImpl):
    """vLLM's Triton attention with tree rows."""

    def page_views(self, layer: "Attention", kv_cache: torch.Tensor) -> PagedKV:
        """See `strided_page_views`."""
        return strided_page_views(kv_cache)


class TreeTritonAttentionBackend(TritonAttentionBackend):
    """Registered over vLLM's TRITON_ATTN when the method is chosen."""

    @staticmethod
    def get_impl_cls() -> type["TreeTritonAttentionImpl"]:
        return TreeTritonAttentionImpl

    @staticmethod
    def get_builder_cls() -> type["TreeTritonAttentionMetadataBuilder"]:
        return TreeTritonAttentionMetadataBuilder
