# SPDX-License-Identifier: Apache-2.0
"""vLLM's CPU attention backend, with tree rows on top.

Rows of requests that carry a tree are attended by `kernels.tree_attention`; every other row goes
through vLLM's own op unchanged.
"""

from dataclasses import dataclass

import torch
from vllm.v1.attention.backends.cpu_attn import (
    CPUAttentionBackend,
    CPUAttentionBackendImpl,
    CPUAttentionMetadata,
    CPUAttentionMetadataBuilder,
)

from vllm_eagle_pangu.engine.cpu_pages import TREE_ISA, page_views, require_readable_pages
from vllm_eagle_pangu.engine.tree_rows import LayerScratch, TreeRows
from vllm_eagle_pangu.kernels.tree_attention import PagedKV, tree_attention


@dataclass
class TreeCPUAttentionMetadata(CPUAttentionMetadata):
    """vLLM's metadata plus the tree rows of the batch; `tree` is None in a batch without trees."""

    tree: TreeRows | None = None


class TreeCPUAttentionMetadataBuilder(CPUAttentionMetadataBuilder):
    """Builds vLLM's metadata on a page layout that tree attention can read."""

    isa: str

    def __init__(self, kv_cache_spec, layer_names, vllm_config, device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        if self.isa == "amx":
            # AMX packs K and V into tiles that only its own op can read.
            self.isa = TREE_ISA
            self._set_isa_to_layers(layer_names)
        require_readable_pages(
            self.isa, self.num_kv_heads, self.head_dim, self.block_size, self.dtype
        )

    def build(
        self, common_prefix_len, common_attn_metadata, fast_build=False
    ) -> TreeCPUAttentionMetadata:
        """See `CPUAttentionMetadataBuilder.build`; the runner attaches the tree afterwards."""
        metadata = super().build(common_prefix_len, common_attn_metadata, fast_build)
        return TreeCPUAttentionMetadata(**vars(metadata))


class TreeCPUAttentionImpl(CPUAttentionBackendImpl):
    """Per layer: vLLM's CPU attention, tree attention, and the layer's scratch K/V."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        _refuse_unsupported_scores(self)
        self.scratch: LayerScratch | None = None
        self._pages: PagedKV | None = None

    def pages(self, kv_cache: torch.Tensor) -> PagedKV:
        """Strided views of this layer's pages; see `page_views`."""
        if self._pages is None or self._pages.value.data_ptr() != _value_ptr(kv_cache):
            self._pages = page_views(kv_cache)
        return self._pages

    def forward(
        self,
        layer,
        query: torch.Tensor,  # [N, H, K]
        key: torch.Tensor,  # [N, Hk, K]
        value: torch.Tensor,  # [N, Hk, K]
        kv_cache: torch.Tensor,  # [blocks, Hk, block_size, 2K]
        attn_metadata,
        output: torch.Tensor,  # [N, H, K]
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Same contract as `CPUAttentionBackendImpl.forward`."""
        rows = None if attn_metadata is None else attn_metadata.tree
        if rows is None or not rows.covers_batch:
            # Tree rows come out wrong here and are overwritten below: cheaper than splitting the
            # batch, which only a step with a prefill in it would need.
            super().forward(
                layer,
                query,
                key,
                value,
                kv_cache,
                attn_metadata,
                output,
                output_scale,
                output_block_scale,
            )
        if rows is not None:
            key, value = rows.store(self.scratch, key, value)
            tree_attention(
                query,
                key,
                value,
                self.pages(kv_cache),
                rows.block_table,
                rows.prefix_len,
                rows.query_start,
                rows.query_count,
                rows.key_start,
                rows.key_count,
                rows.visible,
                self.scale,
                output,
                implementation=rows.implementation,
            )
        return output


class TreeCPUAttentionBackend(CPUAttentionBackend):
    """Registered over vLLM's CPU_ATTN when the method is chosen."""

    @staticmethod
    def get_impl_cls() -> type[TreeCPUAttentionImpl]:
        return TreeCPUAttentionImpl

    @staticmethod
    def get_builder_cls() -> type[TreeCPUAttentionMetadataBuilder]:
        return TreeCPUAttentionMetadataBuilder


def _value_ptr(kv_cache: torch.Tensor) -> int:
    """Address of the first value element: values follow the keys inside a block."""
    block_size, width = kv_cache.shape[2:]
    return kv_cache.data_ptr() + block_size * (width // 2) * kv_cache.element_size()


def _refuse_unsupported_scores(impl: CPUAttentionBackendImpl) -> None:
    """Tree attention computes plain scaled dot products; anything else would be silently wrong."""
    unsupported = {
        "attention sinks": impl.sinks is not None,
        f"logits soft cap {impl.logits_soft_cap}": bool(impl.logits_soft_cap),
        "ALiBi slopes": impl.alibi_slopes is not None,
        f"sliding window {impl.sliding_window}": impl.sliding_window != -1,
        f"kv_cache_dtype={impl.kv_cache_dtype}": impl.is_fp8_kv_cache,
        "KV shared between layers": impl.kv_sharing_target_layer_name is not None,
    }
    for what, present in unsupported.items():
        if present:
            raise ValueError(
                f"eagle_pangu: the model uses {what}, which tree attention does not support; "
                'use "method": "eagle3" for this model'
            )
