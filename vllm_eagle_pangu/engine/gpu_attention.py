# SPDX-License-Identifier: Apache-2.0
"""What vLLM's GPU backends have in common: strided pages, and attention outside of CUDA graphs."""

from typing import TYPE_CHECKING

import torch
from vllm.v1.attention.backend import AttentionBackend, AttentionCGSupport

from vllm_eagle_pangu.engine.attention import TreeAttentionMixin, TreeBackendMixin, TreeBuilderMixin
from vllm_eagle_pangu.kernels.tree_attention import PagedKV

if TYPE_CHECKING:
    from vllm.model_executor.layers.attention import Attention


class GPUTreeBuilderMixin(TreeBuilderMixin):
    """A step's trees differ from the last one's: attention stays outside of CUDA graphs."""

    _cudagraph_support = AttentionCGSupport.NEVER


class GPUTreeAttentionMixin(TreeAttentionMixin):
    """Tree rows on plain strided pages, rows in the layout that vLLM chose."""

    def page_views(self, layer: "Attention", kv_cache: torch.Tensor) -> PagedKV:
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


def with_trees(backend: type[AttentionBackend]) -> type[TreeBackendMixin]:
    """A GPU backend of vLLM's with tree rows on top; named after it, as vLLM groups by names."""

    def ours(mixin: type, theirs: type, **parts: type) -> type:
        return type(f"Tree{theirs.__name__}", (mixin, theirs), parts)

    impl = ours(GPUTreeAttentionMixin, backend.get_impl_cls())
    builder = ours(GPUTreeBuilderMixin, backend.get_builder_cls())
    return ours(TreeBackendMixin, backend, impl=impl, builder=builder)
