# SPDX-License-Identifier: Apache-2.0
"""commit_pages by Ascend's own cache write, a call per layer, on A2 and A3.

`_npu_reshape_and_cache` skips negative slots there (op-plugin,
test/test_custom_ops/test_atb_reshape_and_cache.py). Checked against the schema and a stand-in;
never run on an NPU.
"""

from collections.abc import Iterator

import torch

from vllm_eagle_pangu.kernels.kv_commit.layers import CommitLayers
from vllm_eagle_pangu.kernels.npu_runtime import contiguous_pages, keep_within

# Key rows, value rows, key pages, value pages `[blocks, block_size, Hk, K]`.
LayerWrite = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def commit_pages(layers: CommitLayers, slots: torch.Tensor) -> None:
    """See `reference.commit_pages`; nothing waits for the device.

    Raises ValueError where K or V would have to be cast, or pages are not contiguous.
    """
    # The operator takes int32, which vllm-ascend's slots are.
    written = slots.int()
    for key, value, key_pages, value_pages in layer_writes(layers, slots):
        torch.ops.atb._npu_reshape_and_cache(key, value, key_pages, value_pages, written)


def layer_writes(layers: CommitLayers, slots: torch.Tensor) -> Iterator[LayerWrite]:
    """The scratch rows of each layer that have `slots`, its pages in the operators' order."""
    layers.check_rows(slots)
    rows = slots.shape[0]
    scratch, pages = layers.keys[0].dtype, layers.pages[0].key.dtype
    limit = ("scratch dtype", scratch, scratch == pages, f"{pages}")
    keep_within("commit on an NPU", [limit], 'leave kv_cache_dtype at "auto"')
    for key, value, paged in zip(layers.keys, layers.values, layers.pages, strict=True):
        yield (
            key[:rows].contiguous(),
            value[:rows].contiguous(),
            contiguous_pages(paged.key),
            contiguous_pages(paged.value),
        )
