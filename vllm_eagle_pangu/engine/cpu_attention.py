# SPDX-License-Identifier: Apache-2.0
"""vLLM's CPU attention backend, with tree rows on top."""

import torch
from vllm.config import get_layers_from_vllm_config
from vllm.logger import init_logger
from vllm.model_executor.layers.attention import Attention
from vllm.v1.attention.backends.cpu_attn import (
    CPUAttentionBackend,
    CPUAttentionBackendImpl,
    CPUAttentionMetadataBuilder,
)

from vllm_eagle_pangu.engine.attention import TreeAttentionMixin, TreeBackendMixin, TreeBuilderMixin
from vllm_eagle_pangu.engine.loaded_layers import readable_pages
from vllm_eagle_pangu.kernels.tree_attention import PagedKV

# Of vLLM's own loggers, which are the ones that a server shows.
_logger = init_logger(f"vllm.{__name__}")
_WITHOUT_AMX = (
    "eagle_pangu: attention runs without AMX here, since tree rows cannot read KV pages as vLLM "
    "packs them for it. Prefills and rows without a tree are attended on AVX-512 too, which is "
    "slower in bfloat16 and rounds differently; linear layers keep AMX."
)

# vLLM's instruction sets with pages of their own: K and V in AMX tiles; K transposed inside a
# block, V row-major.
AMX, VEC = "amx", "vec"


class TreeCPUAttentionMetadataBuilder(TreeBuilderMixin, CPUAttentionMetadataBuilder):
    """Builds vLLM's metadata on a page layout that tree attention can read."""

    isa: str

    def __init__(self, kv_cache_spec, layer_names, vllm_config, device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        layers = get_layers_from_vllm_config(vllm_config, Attention, layer_names).values()
        for layer in layers:
            layer.isa = self.isa
        if self.isa == AMX and not all(map(self._reads_trial_of, layers)):
            self.isa = VEC
            for layer in layers:
                layer.isa = self.isa
            _logger.info_once(_WITHOUT_AMX)

    def _reads_trial_of(self, layer: Attention) -> bool:
        """Whether tree attention reads a block that `layer` writes."""
        size = (1, layer.num_kv_heads, self.kv_cache_spec.block_size, 2 * layer.head_size)
        return readable_pages(layer, torch.zeros(size, dtype=layer.kv_cache_torch_dtype))


class TreeCPUAttentionImpl(TreeAttentionMixin, CPUAttentionBackendImpl):
    """vLLM's CPU attention with tree rows."""

    def page_views(self, layer: Attention, kv_cache: torch.Tensor) -> PagedKV:
        """Views of `kv_cache: [blocks, Hk, block_size, 2K]`.

        Where vLLM has AMX for `layer`: `PagedKV.of_amx_tiles`. Else it holds, per block and head,
        `K * block_size` key elements (element d of slot s at `d * block_size + s`) and then as many
        value elements (row-major). Source: vllm/v1/attention/backends/cpu_attn.py and
        csrc/cpu/cpu_attn_vec.hpp.
        """
        if layer.isa == AMX:
            return PagedKV.of_amx_tiles(kv_cache)
        blocks, heads, block_size, width = kv_cache.shape
        key, value = kv_cache.view(blocks, heads, 2, -1).unbind(2)
        return PagedKV(
            key=key.unflatten(2, (width // 2, block_size)).transpose(2, 3),
            value=value.unflatten(2, (block_size, width // 2)),
        )


class TreeCPUAttentionBackend(TreeBackendMixin, CPUAttentionBackend):
    """Registered over vLLM's CPU_ATTN."""

    impl, builder = TreeCPUAttentionImpl, TreeCPUAttentionMetadataBuilder
