# SPDX-License-Identifier: Apache-2.0
"""vLLM 0.23's CPU attention under the contract of 0.32: K/V are written before `forward`.

Why: on 0.23 the CPU backend writes K/V inside `forward`, from its own metadata, where tree passes
that keep their rows out of the pages have none.
How: a `do_kv_cache_update` of the form that 0.32 gives every backend; what `forward` then writes
again is the same.
Upstream: vllm/v1/attention/backends/cpu_attn.py.
Remove when: vLLM 0.23 is no longer supported.
"""

from typing import Any

import torch
from vllm import _custom_ops as ops

from vllm_eagle_pangu.engine.cpu_attention import TreeCPUAttentionBackend, TreeCPUAttentionImpl


class TreeCPUAttentionImpl023(TreeCPUAttentionImpl):
    """Tree attention on 0.23's pages, which are 0.32's."""

    def do_kv_cache_update(
        self,
        layer: Any,
        key: torch.Tensor,  # [N, Hk, K]
        value: torch.Tensor,  # [N, Hk, K]
        kv_cache: torch.Tensor,  # [blocks, Hk, block_size, 2K]
        slot_mapping: torch.Tensor,  # [N]
    ) -> None:
        """Write K/V to their slots, -1 skipped."""
        blocks, heads, block_size, width = kv_cache.shape
        packed = kv_cache.view(blocks, heads, block_size * 2, width // 2)
        key_pages, value_pages = packed.chunk(2, dim=2)
        ops.cpu_attn_reshape_and_cache(
            key,
            value,
            key_pages,
            value_pages,
            slot_mapping,
            layer.isa,
            k_scale=layer._k_scale_float,
            v_scale=layer._v_scale_float,
            kv_cache_dtype=self.kv_cache_dtype,
        )


class TreeCPUAttentionBackend023(TreeCPUAttentionBackend):
    """Registered over 0.23's CPU_ATTN."""

    forward_includes_kv_cache_update = False
    impl = TreeCPUAttentionImpl023
