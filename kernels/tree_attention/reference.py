# SPDX-License-Identifier: Apache-2.0
"""Definition of tree_attention: gather, one softmax in float32, request by request."""

from collections.abc import Iterator

import torch

from vllm_eagle_pangu.kernels.tree_attention.call import AttentionCall
from vllm_eagle_pangu.kernels.tree_attention.pages import PagedKV, pages_of


def tree_attention(call: AttentionCall, dtype: torch.dtype = torch.float32) -> None:
    """See `tree_attention`; computed in `dtype`."""
    query, key, value, pages, rows, scale, output = call
    starts = rows.prefix_start
    requests = zip(
        [0] * len(rows.prefix_len) if starts is None else starts.tolist(),
        rows.prefix_len.tolist(),
        rows.query_start.tolist(),
        rows.query_count.tolist(),
        rows.key_start.tolist(),
        rows.key_count.tolist(),
        strict=True,
    )
    for t, (start, end, first_query, queries, first_key, keys) in enumerate(requests):
        dense = slice(first_key, first_key + keys)
        sees = rows.visible[t, :queries, :keys]
        dense_value = value[dense].transpose(0, 1)
        # A row that nobody sees may hold anything, and 0 * NaN is NaN.
        dense_value = dense_value.masked_fill(~sees.any(dim=0)[:, None], 0)
        past_key, past_value = _prefix(pages, rows.block_table[t], start, end)
        k = torch.cat((past_key, key[dense].transpose(0, 1)), dim=1)
        v = torch.cat((past_value, dense_value), dim=1)
        sees = torch.cat((sees.new_ones(queries, end - start), sees), dim=1)
        own = slice(first_query, first_query + queries)
        attended = _attend(query[own].to(dtype), k.to(dtype), v.to(dtype), sees, scale)
        output[own] = attended.to(output.dtype)


def _prefix(
    pages: PagedKV, block_table: torch.Tensor, start: int, end: int
) -> Iterator[torch.Tensor]:
    """Keys and values `[Hk, end - start, K]` of one request."""
    block_size = pages.shape[2]
    blocks = block_table[pages_of(start, end, block_size)].long()
    for read in pages.read(blocks):
        slots = read.transpose(0, 1).flatten(1, 2)
        yield slots[:, start % block_size :][:, : end - start]


def _attend(
    query: torch.Tensor,  # [R, H, K]
    key: torch.Tensor,  # [Hk, S, K]
    value: torch.Tensor,  # [Hk, S, K]
    sees: torch.Tensor,  # [R, S]
    scale: float,
) -> torch.Tensor:  # [R, H, K]
    heads = key.shape[0]
    grouped = query.unflatten(1, (heads, -1))
    scores = torch.einsum("rhgk,hsk->rhgs", grouped, key) * scale
    scores = scores.masked_fill(~sees[:, None, None, :], -torch.inf)
    # A row that sees nothing has a softmax of NaN; its weights are 0.
    weights = scores.softmax(dim=-1).masked_fill(~sees.any(dim=1)[:, None, None, None], 0)
    return torch.einsum("rhgs,hsk->rhgk", weights, value).flatten(1, 2)
