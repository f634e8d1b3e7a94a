# SPDX-License-Identifier: Apache-2.0
"""Which rows attend which keys."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from vllm_eagle_pangu.kernels.tree_attention.pages import PagedKV, pages_of

_Derived = TypeVar("_Derived")


@dataclass(frozen=True)
class AttentionRows:
    """T tree requests of one pass.

    Query rows `query_start[t] .. + query_count[t]` of request t attend the paged keys
    `prefix_start[t] .. prefix_len[t]` (None: from 0 on), found through `block_table[t]`, and those
    of the dense rows `key_start[t] .. + key_count[t]` that `visible[t]` shows them.

    `block_table: [T, P] int32`, a request's entries adjacent; `prefix_len`, `query_start`,
    `query_count`, `key_start`, `key_count`, `prefix_start: [T] int32`, contiguous; `visible:
    [T, Rq, Rk] bool`, any strides.
    """

    block_table: torch.Tensor
    prefix_len: torch.Tensor
    query_start: torch.Tensor
    query_count: torch.Tensor
    key_start: torch.Tensor
    key_count: torch.Tensor
    visible: torch.Tensor
    prefix_start: torch.Tensor | None = field(default=None, kw_only=True)
    derived: dict[Hashable, Any] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        table, requests = self.block_table, self.visible.shape[0]
        assert self.visible.dtype == torch.bool, self.visible.dtype
        assert table.dtype == torch.int32 and table.shape[0] == requests, table.shape
        assert table.stride(1) == 1 or table.shape[1] <= 1, table.stride()
        for tensor in self._per_request():
            assert tensor.dtype == torch.int32 and tensor.shape == (requests,), tensor.shape
            assert tensor.is_contiguous(), tensor.stride()

    def once(self, key: Hashable, make: Callable[[], _Derived]) -> _Derived:
        """What an implementation makes of these rows, kept for all layers of the pass.

        The tensors must stay as they are meanwhile.
        """
        if key not in self.derived:
            self.derived[key] = make()
        result: _Derived = self.derived[key]
        return result

    def check(self, query: torch.Tensor, key: torch.Tensor, pages: PagedKV) -> None:
        """Assert that all rows and pages are those of the tensors; syncs with the device.

        `query: [N, H, K]`; `key: [X, Hk, K]`.
        """
        for tensor in self._per_request():
            assert bool((tensor >= 0).all()), tensor
        assert bool((self.query_count <= self.visible.shape[1]).all()), self.query_count
        assert bool((self.key_count <= self.visible.shape[2]).all()), self.key_count
        query_end, key_end = self.query_start + self.query_count, self.key_start + self.key_count
        assert bool((query_end <= query.shape[0]).all()), query_end
        assert bool((key_end <= key.shape[0]).all()), key_end
        blocks, _, block_size, _ = pages.shape
        ends, starts = self.prefix_len.tolist(), self.prefix_start
        starts = [0] * len(ends) if starts is None else starts.tolist()
        for table, start, end in zip(self.block_table, starts, ends, strict=True):
            assert start <= end <= table.numel() * block_size, (start, end, table.shape)
            used = table[pages_of(start, end, block_size)]
            assert bool(((used >= 0) & (used < blocks)).all()), used

    def _per_request(self) -> list[torch.Tensor]:
        spans = (self.query_start, self.query_count, self.key_start, self.key_count)
        prefix = (self.prefix_len, self.prefix_start)
        return [tensor for tensor in (*prefix, *spans) if tensor is not None]
