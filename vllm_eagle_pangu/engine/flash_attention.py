# SPDX-License-Identifier: Apache-2.0
"""vLLM's FLASH_ATTN backend, with tree rows on top."""

from vllm.v1.attention.backends.flash_attn import FlashAttentionBackend

from vllm_eagle_pangu.engine.gpu_attention import with_trees

TreeFlashAttentionBackend = with_trees(FlashAttentionBackend)
