# SPDX-License-Identifier: Apache-2.0
"""vllm-ascend's attention backend for grouped queries, with tree rows on top.

K/V of a layer are two tensors, and vllm-ascend writes them inside `forward`.
Source: vllm_ascend/attention/attention_v1.py.
"""

from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
from vllm_ascend.attention.attention_v1 import (
    AscendAttentionBackend,
    AscendAttentionBackendImpl,
    AscendAttentionMetadataBuilder,
)

from vllm_eagle_pangu.compat.lent import lent
from vllm_eagle_pangu.config import tree_config
from vllm_eagle_pangu.engine.attention import TreeAttentionMixin, TreeBackendMixin, TreeBuilderMixin
from vllm_eagle_pangu.kernels.tree_attention import PagedKV

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.model_executor.layers.attention import Attention
    from vllm_ascend.attention.attention_v1 import AscendMetadata

    from vllm_eagle_pangu.engine.draft_head import TreeOnlyMetadata

KVPages = tuple[torch.Tensor, torch.Tensor]

# The most drafts of a request for which vllm-ascend's builder lets itself be made.
_MOST_DRAFTS = 15


class TreeAscendAttentionMetadataBuilder(TreeBuilderMixin, AscendAttentionMetadataBuilder):
    """Builds vllm-ascend's metadata for trees of any size."""

    # Why: vllm-ascend counts requests of at most 1 + num_speculative_tokens rows as decodes, and
    #   asserts that these are 16 rows or fewer, which its attention call takes as one decode.
    # How: it is made for the chain that it allows, then given our count. Rows of trees never
    #   depend on that call: in a mixed batch they pass it as a prefill's chunk does, of any
    #   length, and are overwritten.
    # Upstream: AscendAttentionMetadataBuilder.__init__.
    # Remove when: vllm-ascend asserts that for its own methods only.
    def __init__(
        self,
        kv_cache_spec: Any,
        layer_names: list[str],
        vllm_config: "VllmConfig",
        device: torch.device,
    ) -> None:
        if tree_config(vllm_config) is None:
            # A later engine of this process, without the method.
            super().__init__(kv_cache_spec, layer_names, vllm_config, device)
            return
        config = vllm_config.speculative_config
        drafts = config.num_speculative_tokens
        with lent(config, num_speculative_tokens=min(_MOST_DRAFTS, drafts)):
            super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self.decode_threshold = self.reorder_batch_threshold = 1 + drafts


class TreeAscendAttentionImpl(TreeAttentionMixin, AscendAttentionBackendImpl):
    """vllm-ascend's attention with tree rows."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = signature(AscendAttentionBackendImpl.__init__).bind(self, *args, **kwargs)
        # vllm-ascend drops it, which is checked behind its constructor.
        self.logits_soft_cap = given.arguments["logits_soft_cap"]
        super().__init__(*args, **kwargs)

    def page_views(self, layer: "Attention", kv_cache: KVPages) -> PagedKV:
        """Key and value views `[blocks, Hk, block_size, K]` of two `[blocks, block_size, Hk, K]`.

        ND, as vllm-ascend lays them out but for C8 (`_reshape_kv_cache_tensors`).
        """
        key, value = kv_cache
        return PagedKV(key=key.transpose(1, 2), value=value.transpose(1, 2))

    def forget_pages(self) -> None:
        """vllm-ascend keeps the two tensors, too."""
        super().forget_pages()
        self.key_cache = self.value_cache = None

    def do_kv_cache_update(
        self,
        layer: "Attention",
        key: torch.Tensor,  # [N, Hk, K]
        value: torch.Tensor,  # [N, Hk, K]
        kv_cache: KVPages,
        slot_mapping: torch.Tensor,  # [N]
    ) -> None:
        """Write K/V to their slots, -1 skipped (on A2 and A3); the operator takes int32 slots."""
        super().do_kv_cache_update(layer, key, value, kv_cache, slot_mapping.int())

    def forward(
        self,
        layer: "Attention",
        query: torch.Tensor,  # [N, H, K]
        key: torch.Tensor,  # [N, Hk, K]
        value: torch.Tensor,  # [N, Hk, K]
        kv_cache: KVPages,
        attn_metadata: "AscendMetadata | TreeOnlyMetadata | None",
        output: torch.Tensor,  # [N, H, K]
        **scales: torch.Tensor | None,  # of a quantized output
    ) -> torch.Tensor:
        """See `TreeAttentionMixin`; K/V that go to the pages are written here.

        Where every row is a tree's, vllm-ascend's `forward`, which writes them, is not called.
        """
        if attn_metadata is not None and attn_metadata.tree is not None:
            slots = attn_metadata.slot_mapping
            if attn_metadata.tree.covers_batch and slots is not None:
                count = slots.shape[0]
                self.do_kv_cache_update(layer, key[:count], value[:count], kv_cache, slots)
        return super().forward(layer, query, key, value, kv_cache, attn_metadata, output, **scales)


class TreeAscendAttentionBackend(TreeBackendMixin, AscendAttentionBackend):
    """Takes the place of vllm-ascend's."""

    impl, builder = TreeAscendAttentionImpl, TreeAscendAttentionMetadataBuilder
