# SPDX-License-Identifier: Apache-2.0
"""What tree_attention is given."""

from typing import NamedTuple

import torch

from vllm_eagle_pangu.kernels.tree_attention.pages import PagedKV
from vllm_eagle_pangu.kernels.tree_attention.rows import AttentionRows


class AttentionCall(NamedTuple):
    """The arguments of `tree_attention`, all of one dtype.

    `query`, `output: [N, H, K]`; `key`, `value: [X, Hk, K]`; `pages`: `[blocks, Hk, block_size,
    K]`, AMX tiles too but for Triton; `scale` multiplies the dot products.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    pages: PagedKV
    rows: AttentionRows
    scale: float
    output: torch.Tensor

    def check_sizes(self) -> None:
        """Assert that shapes and dtypes fit each other; nothing waits for the device."""
        query, key, value, pages, _, _, output = self
        assert output.shape == query.shape, (output.shape, query.shape)
        assert key.shape == value.shape, (key.shape, value.shape)
        _, kv_heads, _, head_size = pages.shape
        assert key.shape[1:] == (kv_heads, head_size), (key.shape, pages.shape)
        assert query.shape[2] == head_size and query.shape[1] % kv_heads == 0, query.shape
        assert query.dtype == key.dtype == value.dtype == output.dtype, query.dtype
        assert query.dtype == pages.key.dtype, (query.dtype, pages.key.dtype)
