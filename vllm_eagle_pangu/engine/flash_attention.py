# SPDX-License-Identifier: Apache-2.0
"""vLLM's FLASH_ATTN backend, with tree rows on top."""

from vllm.v1.attention.backends.flash_attn import (
    FlashAttentionBackend,
    FlashAttentionImpl,
    FlashAttentionMetadataBuilder,
)

from vllm_eagle_pangu.engine.gpu_attention import GPUTreeAttentionMixin, GPUTreeBuilderMixin


class TreeFlashAttentionMetadataBuilder(GPUTreeBuilderMixin, FlashAttentionMetadataBuilder):
    """vLLM's metadata, and the step's trees."""


class TreeFlashAttentionImpl(GPUTreeAttentionMixin, FlashAttentionImpl):
    """vLLM's FlashAttention with tree rows."""


class TreeFlashAttentionBackend(FlashAttentionBackend):
    """Registered over vLLM's FLASH_ATTN when the method is chosen."""

    @staticmethod
    def get_impl_cls() -> type["TreeFlashAttentionImpl"]:
        return TreeFlashAttentionImpl

    @staticmethod
    def get_builder_cls() -> type["TreeFlashAttentionMetadataBuilder"]:
        return TreeFlashAttentionMetadataBuilder
