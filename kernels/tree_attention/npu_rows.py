# SPDX-License-Identifier: Apache-2.0
"""Tree rows as Ascend's operators want them: lengths on the host, rows padded or packed.

And their K/V in a request's pages, behind its prefix, for operators that read nothing else.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch.nn.functional import pad

from vllm_eagle_pangu.kernels.npu_runtime import contiguous_pages
from vllm_eagle_pangu.kernels.tree_attention.call import AttentionCall
from vllm_eagle_pangu.kernels.tree_attention.rows import AttentionRows

# One query row would take FIA's other branch, whose masks have other shapes.
_LEAST_QUERIES = 2


@dataclass(frozen=True)
class NpuRows:
    """B requests; Q and S: the most query rows (2 at least) and dense keys of one; T query rows.

    `prefixes`, `queries`, `keys`: per request, on the host. Padding repeats rows of the request.
    """

    prefixes: list[int]
    queries: list[int]
    keys: list[int]
    packed: torch.Tensor  # [T] int64: all query rows, request by request
    place: torch.Tensor  # [T] int64: where each of them is in `query_rows.flatten()`
    query_rows: torch.Tensor  # [B, Q] int64
    key_rows: torch.Tensor  # [B, S] int64
    sees: torch.Tensor  # [B, Q, S] bool; False in padding
    hidden: torch.Tensor  # [B, 1, Q, S] bool: the opposite, as FIA takes masks
    unseen: torch.Tensor  # [B, S, 1, 1] bool: dense keys that no row sees
    no_prefix: torch.Tensor | None  # [T] bool; None where every request has a prefix
    no_node: torch.Tensor  # [T] bool: rows that see no dense key
    no_key: torch.Tensor  # [T] bool: both

    @classmethod
    def of(cls, rows: AttentionRows) -> "NpuRows":
        """Made once for all layers of a pass: it waits for the device.

        Raises ValueError for rows with a window: no fused operator takes one beside a tree's mask.
        """
        return rows.once("npu rows", lambda: cls._of(rows))

    @classmethod
    def _of(cls, rows: AttentionRows) -> "NpuRows":
        if rows.prefix_start is not None:
            raise ValueError(
                "tree attention on an NPU: prefix_start, a window, is not supported; drop "
                "drafter_window and heads that have one, or set PANGU_FORCE_EAGER_ATTN=1"
            )
        tensors = (
            *(rows.prefix_len, rows.query_start, rows.query_count),
            *(rows.key_start, rows.key_count),
        )
        prefix, query_start, queries, key_start, keys = torch.stack(tensors).long().cpu()
        device = rows.visible.device
        most_queries = max(_LEAST_QUERIES, *queries.tolist())
        query_rows, is_query = _padded(query_start, queries, most_queries)
        key_rows, is_key = _padded(key_start, keys, max(1, *keys.tolist()))
        sees = rows.visible[:, :most_queries, : key_rows.shape[1]]
        missing = (0, key_rows.shape[1] - sees.shape[2], 0, most_queries - sees.shape[1])
        sees = pad(sees, missing) & (is_query[:, :, None] & is_key[:, None]).to(device)
        place = is_query.flatten().nonzero()[:, 0]
        no_prefix = (prefix == 0)[:, None].expand_as(is_query)[is_query].to(device)
        no_node = ~sees.any(2).flatten()[place.to(device)]
        return cls(
            prefixes=prefix.tolist(),
            queries=queries.tolist(),
            keys=keys.tolist(),
            packed=query_rows.flatten()[place].to(device),
            place=place.to(device),
            query_rows=query_rows.to(device),
            key_rows=key_rows.to(device),
            sees=sees,
            hidden=~sees[:, None],
            unseen=~sees.any(1)[:, :, None, None],
            no_prefix=no_prefix if bool((prefix == 0).any()) else None,
            no_node=no_node,
            no_key=no_node & no_prefix,
        )

    @property
    def contexts(self) -> list[int]:
        """Per request, how many keys stand behind each other in pages: prefix and dense ones."""
        return [prefix + keys for prefix, keys in zip(self.prefixes, self.keys, strict=True)]

    def dense(self, rows: torch.Tensor) -> torch.Tensor:
        """`[B, S, Hk, K]` of `[X, Hk, K]`; 0 what nobody sees, which may hold NaN."""
        return rows[self.key_rows].masked_fill(self.unseen, 0)


def _padded(
    start: torch.Tensor,  # [B] int64
    count: torch.Tensor,  # [B] int64
    most: int,
) -> tuple[torch.Tensor, torch.Tensor]:  # [B, most] int64, bool
    """Rows `start .. + count` of each request, and which of them are no padding."""
    number = torch.arange(most)
    behind = number.minimum((count - 1).clamp(min=0)[:, None])
    return start[:, None] + behind, number < count[:, None]


@contextmanager
def staged(call: AttentionCall, npu: NpuRows) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Key and value pages `[blocks, block_size, Hk, K]` with the dense keys written in.

    What stood there is back when the block is left: verifying changes no page.

    Raises ValueError where a block table has no room for them.
    """
    rows, pages = call.rows, call.pages
    source, slots = rows.once("npu staging", lambda: _staging(rows, npu, pages.shape[2]))
    paged = [contiguous_pages(x) for x in (pages.key, pages.value)]
    flat = [x.flatten(0, 1) for x in paged]
    before = [x[slots] for x in flat]
    for there, dense in zip(flat, (call.key, call.value), strict=True):
        there[slots] = npu.dense(dense).flatten(0, 1)[source]
    try:
        yield paged[0], paged[1]
    finally:
        for there, kept in zip(flat, before, strict=True):
            there[slots] = kept


def _staging(
    rows: AttentionRows, npu: NpuRows, block_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Where the dense keys are in `NpuRows.dense`, flattened, and the slots that they get."""
    columns, most = rows.block_table.shape[1], max(npu.contexts)
    if most > columns * block_size:
        raise ValueError(
            f"tree attention on an NPU: a prefix and its tree are {most} keys, and a block table "
            f"of {columns} pages holds {columns * block_size}; choose implementation 'npu', which "
            "writes no node to pages"
        )
    device = rows.block_table.device
    number = torch.arange(npu.sees.shape[2], device=device)
    prefix, keys = (torch.tensor(x, device=device)[:, None] for x in (npu.prefixes, npu.keys))
    at = (prefix + number).clamp(max=columns * block_size - 1)
    slots = rows.block_table.long().gather(1, at // block_size) * block_size + at % block_size
    is_key = number < keys
    return is_key.flatten().nonzero()[:, 0], slots[is_key]
