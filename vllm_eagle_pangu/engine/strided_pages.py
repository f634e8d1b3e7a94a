# SPDX-License-Identifier: Apache-2.0
"""KV pages of vLLM's GPU backends: plain strided tensors, rows in the layout that vLLM chose."""

import torch

from vllm_eagle_pangu.kernels.tree_attention import PagedKV


def strided_page_views(kv_cache: torch.Tensor) -> PagedKV:
    """Key and value views `[blocks, Hk, block_size, K]` of one layer's cache tensor.

    vLLM 0.32: `[blocks, Hk, block_size, 2K]`, the key's elements before the value's; vLLM 0.23:
    `[blocks, 2, block_size, Hk, K]`. NHD or HND in memory is a matter of strides. Source:
    vllm/v1/attention/backends/{triton_attn,flash_attn}.py.
    """
    if kv_cache.dim() == 5:
        key, value = kv_cache.transpose(2, 3).unbind(1)
    else:
        key, value = kv_cache.chunk(2, dim=-1)
    return PagedKV(key=key, value=value)
