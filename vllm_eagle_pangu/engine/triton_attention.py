# SPDX-License-Identifier: Apache-2.0
"""vLLM's TRITON_ATTN backend, with tree rows on top."""

from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend

from vllm_eagle_pangu.engine.gpu_attention import with_trees

TreeTritonAttentionBackend = with_trees(TritonAttentionBackend)
