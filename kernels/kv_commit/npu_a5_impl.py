# SPDX-License-Identifier: Apache-2.0
"""commit_pages by Ascend's cache write on A5, whose slots lie in [0, blocks * block_size).

So rows without a slot go first. Call as in vllm-ascend 0.23.0, device/device_op.py; limits in
op-plugin, docs/zh/custom_APIs/torch_npu/torch_npu-npu_scatter_pa_kv_cache.md. Checked against the
schema and a stand-in; never run on an NPU.
"""

import torch

from vllm_eagle_pangu.kernels.kv_commit.layers import CommitLayers
from vllm_eagle_pangu.kernels.kv_commit.npu_impl import layer_writes


def commit_pages(layers: CommitLayers, slots: torch.Tensor) -> None:
    """See `reference.commit_pages`; waits for the device once, to know how many rows are kept.

    Raises ValueError as `npu_impl.commit_pages`.
    """
    kept = (slots >= 0).nonzero()[:, 0]
    if not kept.numel():
        return
    written = slots[kept].int()
    for key, value, key_pages, value_pages in layer_writes(layers, slots):
        torch.ops.npu.npu_scatter_pa_kv_cache(
            key[kept], value[kept], key_pages, value_pages, written, cache_mode="Norm"
        )
