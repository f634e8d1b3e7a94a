# SPDX-License-Identifier: Apache-2.0
"""What an attention layer needs to know of the trees in a batch, and where it keeps their K/V."""

from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

import torch

from vllm_eagle_pangu.kernels.indices import causal, index_range, spans
from vllm_eagle_pangu.kernels.tree_attention import AttentionRows

# [X, Hk, K] each: rows of keys and of values.
KeyValue: TypeAlias = tuple[torch.Tensor, torch.Tensor]


class AttentionLayer(Protocol):
    """What a layer of the platform says of its K/V."""

    num_kv_heads: int
    head_size: int
    kv_cache_torch_dtype: torch.dtype


@dataclass
class LayerScratch:
    """Dense K/V of one layer's tree rows, thrown away or committed after the step.

    `key`, `value`: `[S, Hk, K]` in the cache's dtype.
    """

    key: torch.Tensor
    value: torch.Tensor

    @classmethod
    def empty(cls, layer: AttentionLayer, rows: int, device: torch.device) -> "LayerScratch":
        """Room for `rows` rows of an attention layer of vLLM's, which may have no pages yet.

        Written to, for vLLM's profile on CPU counts resident pages only.
        """
        shape = (rows, layer.num_kv_heads, layer.head_size)
        dtype = layer.kv_cache_torch_dtype
        return cls(*(torch.zeros(shape, dtype=dtype, device=device) for _ in range(2)))

    @property
    def nbytes(self) -> int:
        return self.key.nbytes + self.value.nbytes


@dataclass(frozen=True)
class TreeRows(AttentionRows):
    """Tree rows of one forward pass."""

    # True when every row of the batch belongs to a tree: vLLM's own op is then not called.
    covers_batch: bool

    def store(self, scratch: LayerScratch, key: torch.Tensor, value: torch.Tensor) -> KeyValue:
        """The dense key and value rows to attend; subclasses keep them in `scratch`."""
        del scratch
        return key, value

    def within(self, window: int) -> "TreeRows":
        """The same rows in a layer whose queries see only themselves and `window - 1` keys before.

        A row's depth behind the prefix counts towards the window.
        """
        raise AssertionError("only the drafter's layers may have a window")


@dataclass(frozen=True)
class ChainRows(TreeRows):
    """Rows of each request that follow each other behind its prefix, all with their causal mask."""

    @classmethod
    def of(
        cls,
        block_table: torch.Tensor,  # [T, P] int32
        prefix_len: torch.Tensor,  # [T] int64
        start: torch.Tensor,  # [T] int32: the first row of each request
        rows: int,  # of each
        prefix_start: torch.Tensor | None,  # [T] int32
        covers_batch: bool = True,
    ) -> "ChainRows":
        _, count = spans(len(start), rows, rows, start.device)
        return cls(
            block_table=block_table,
            prefix_len=prefix_len.int(),
            query_start=start,
            query_count=count,
            key_start=start,
            key_count=count,
            visible=causal(rows, start.device).expand(len(start), -1, -1),
            covers_batch=covers_batch,
            prefix_start=prefix_start,
        )

    def within(self, window: int) -> TreeRows:
        """Each row as a request of its own, for each has another first key."""
        count = self.visible.shape[1]
        behind = index_range(count, self.visible.device)
        near = behind[:, None] - behind < window
        start = _first_key(self.prefix_len[:, None], behind, window, self.prefix_start)
        return TreeRows(
            block_table=self.block_table.repeat_interleave(count, 0),
            prefix_len=self.prefix_len.repeat_interleave(count),
            query_start=(self.query_start[:, None] + behind).flatten().int(),
            query_count=torch.ones_like(start.flatten()),
            key_start=self.key_start.repeat_interleave(count),
            key_count=self.key_count.repeat_interleave(count),
            visible=(self.visible & near).flatten(0, 1)[:, None],
            covers_batch=self.covers_batch,
            prefix_start=start.flatten(),
        )


@dataclass(frozen=True)
class VerifyRows(TreeRows):
    """Rows [root, node 1..M] of each tree in the target's forward; K/V kept for the commit."""

    # [S] rows of the batch that belong to trees
    batch_rows: torch.Tensor

    def store(self, scratch: LayerScratch, key: torch.Tensor, value: torch.Tensor) -> KeyValue:
        count = self.batch_rows.shape[0]
        for kept, new in ((scratch.key, key), (scratch.value, value)):
            # A batch may be padded behind its rows, for a captured graph.
            kept[:count].copy_(new[:count] if self.covers_batch else new[self.batch_rows])
        return key, value


@dataclass(frozen=True)
class LevelRows(TreeRows):
    """W rows per request of one drafter pass; they attend the levels above in the scratch."""

    level: int
    width: int
    # Rows of the scratch that each request has, whatever the shape of this step's tree.
    scratch_rows: int

    def store(self, scratch: LayerScratch, key: torch.Tensor, value: torch.Tensor) -> KeyValue:
        rows = slice(self.level * self.width, (self.level + 1) * self.width)
        for kept, new in ((scratch.key, key), (scratch.value, value)):
            per_request = kept.view(-1, self.scratch_rows, *new.shape[1:])
            of_level = new.view(-1, self.width, *new.shape[1:])
            per_request[: len(of_level), rows] = of_level
        return scratch.key, scratch.value

    def within(self, window: int) -> "LevelRows":
        """All rows of a level are as deep, so a request keeps one first key."""
        level_of_key = index_range(self.visible.shape[2], self.visible.device) // self.width
        start = _first_key(self.prefix_len[:, None], self.level, window, self.prefix_start)
        return replace(
            self,
            visible=self.visible & (self.level - level_of_key < window),
            prefix_start=start.flatten(),
        )


def _first_key(
    prefix_len: torch.Tensor,  # [T, n] int32
    depth: torch.Tensor | int,  # [n] of each row behind the prefix
    window: int,
    prefix_start: torch.Tensor | None,  # [T] int32
) -> torch.Tensor:
    """`[T, n] int32`: the first key of the prefix in each row's window, `prefix_start` at least."""
    start = (prefix_len + depth + 1 - window).clamp(min=0).minimum(prefix_len)
    if prefix_start is not None:
        start = start.maximum(prefix_start[:, None])
    return start.int()
