# SPDX-License-Identifier: Apache-2.0
"""vLLM's TRITON_ATTN backend, with tree rows on top."""

from vllm.v1.attention.backends.triton_attn import (
    TritonAttentionBackend,
    TritonAttentionImpl,
    TritonAttentionMetadataBuilder,
)

from vllm_eagle_pangu.engine.gpu_attention import GPUTreeAttentionMixin, GPUTreeBuilderMixin


class TreeTritonAttentionMetadataBuilder(GPUTreeBuilderMixin, TritonAttentionMetadataBuilder):
    """vLLM's metadata, and the step's trees."""


class TreeTritonAttentionImpl(GPUTreeAttentionMixin, TritonAttentionImpl):
    """vLLM's Triton attention with tree rows."""


class TreeTritonAttentionBackend(TritonAttentionBackend):
    """Registered over vLLM's TRITON_ATTN when the method is chosen."""

    @staticmethod
    def get_impl_cls() -> type["TreeTritonAttentionImpl"]:
        return TreeTritonAttentionImpl

    @staticmethod
    def get_builder_cls() -> type["TreeTritonAttentionMetadataBuilder"]:
        return TreeTritonAttentionMetadataBuilder
