# SPDX-License-Identifier: Apache-2.0
"""The tree's dense rows in Triton, and the kernel that writes the output."""

import triton
import triton.language as tl

from vllm_eagle_pangu.kernels.tree_attention.triton_prefix import (
    attend_prefix,
    dot,
    fold,
    load_query,
    merge_splits,
    rounded,
    split_length,
)


@triton.jit
def _attend_dense(
    q,  # [BLOCK_M, BLOCK_K]
    key,  # from the request's first dense row, of one KV head
    value,
    visible,  # of one request, bytes
    row,  # [BLOCK_M] row of `visible`
    live_row,  # [BLOCK_M]
    keys,
    scale,
    peak,
    total,
    accumulator,
    key_row_stride,
    value_row_stride,
    visible_row_stride,
    visible_column_stride,
    K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_K: tl.constexpr,
    DENSE_STAGES: tl.constexpr,
    INTERPRET_BF16: tl.constexpr,
):
    """Goes on with the running softmax over those dense rows that each row sees."""
    dim = tl.arange(0, BLOCK_K)
    in_head = dim < K
    for start in tl.range(0, keys, BLOCK_D, num_stages=DENSE_STAGES):
        column = start + tl.arange(0, BLOCK_D)
        live = column < keys
        inside = live_row[:, None] & live[None, :]
        shown = row[:, None] * visible_row_stride + column[None, :] * visible_column_stride
        sees = tl.load(visible + shown, mask=inside, other=0) != 0
        # 0 * NaN is NaN: values that no row of the tile sees are not read.
        seen = tl.max(sees.to(tl.int32), axis=0) > 0
        at = column.to(tl.int64)
        k = tl.load(
            key + (at * key_row_stride)[None, :] + dim[:, None],
            mask=live[None, :] & in_head[:, None],
            other=0.0,
        )
        scores = dot(q, k, tl.zeros([BLOCK_M, BLOCK_D], tl.float32), INTERPRET_BF16) * scale
        scores = tl.where(sees, scores, float("-inf"))
        v = tl.load(
            value + (at * value_row_stride)[:, None] + dim[None, :],
            mask=seen[:, None] & in_head[None, :],
            other=0.0,
        )
        peak, total, accumulator = fold(scores, v, peak, total, accumulator, INTERPRET_BF16)
    return peak, total, accumulator


@triton.jit(
    do_not_specialize=["splits", "most_rows", "visible_request_stride", "visible_row_stride"]
)
def tree_attention_kernel(
    query,
    key,
    value,
    page_key,
    page_value,
    block_table,
    prefix_start,  # None unless WINDOW
    prefix_len,
    query_start,
    query_count,
    key_start,
    key_count,
    visible,
    output,
    partial,
    partial_lse,
    scale,
    splits,
    most_rows,
    query_row_stride,
    query_head_stride,
    key_row_stride,
    key_head_stride,
    value_row_stride,
    value_head_stride,
    output_row_stride,
    output_head_stride,
    page_key_block_stride,
    page_key_head_stride,
    page_key_slot_stride,
    page_key_dim_stride,
    page_value_block_stride,
    page_value_head_stride,
    page_value_slot_stride,
    page_value_dim_stride,
    table_stride,
    visible_request_stride,
    visible_row_stride,
    visible_column_stride,
    WINDOW: tl.constexpr,
    SPLIT: tl.constexpr,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    K: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_K: tl.constexpr,
    DENSE_STAGES: tl.constexpr,
    INTERPRET_BF16: tl.constexpr,
):
    """The whole of a tile: prefix (attended here, or merged from its splits), tree, output."""
    kv_head = tl.program_id(1).to(tl.int64)
    request = tl.program_id(2).to(tl.int64)
    index = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    rows = tl.load(query_count + request) * GROUP
    if tl.program_id(0) * BLOCK_M < rows:
        live = index < rows
        prefix = tl.load(prefix_len + request)
        start = tl.load(prefix_start + request) if WINDOW else 0
        first_row = tl.load(query_start + request).to(tl.int64)
        first_key = tl.load(key_start + request).to(tl.int64)
        q = load_query(
            query, first_row, kv_head, index, live, query_row_stride, query_head_stride,
            GROUP, K, BLOCK_K,
        )  # fmt: skip
        if SPLIT:
            at = (request * HEADS + kv_head) * splits * most_rows
            keys = prefix - start
            count = tl.cdiv(keys, tl.maximum(split_length(keys, splits, BLOCK_N), 1))
            peak, total, accumulator = merge_splits(
                partial + at * K, partial_lse + at, count, index, live, most_rows,
                K, BLOCK_M, BLOCK_K,
            )  # fmt: skip
        else:
            peak, total, accumulator = attend_prefix(
                q,
                page_key + kv_head * page_key_head_stride,
                page_value + kv_head * page_value_head_stride,
                block_table + request * table_stride,
                start, prefix, scale,
                page_key_block_stride, page_key_slot_stride, page_key_dim_stride,
                page_value_block_stride, page_value_slot_stride, page_value_dim_stride,
                K, PAGE, BLOCK_M, BLOCK_N, BLOCK_K, INTERPRET_BF16,
            )  # fmt: skip
        peak, total, accumulator = _attend_dense(
            q,
            key + first_key * key_row_stride + kv_head * key_head_stride,
            value + first_key * value_row_stride + kv_head * value_head_stride,
            visible + request * visible_request_stride,
            index // GROUP, live, tl.load(key_count + request), scale,
            peak, total, accumulator,
            key_row_stride, value_row_stride, visible_row_stride, visible_column_stride,
            K, BLOCK_M, BLOCK_D, BLOCK_K, DENSE_STAGES, INTERPRET_BF16,
        )  # fmt: skip
        # Of no keys at all the sum is 0.
        attended = accumulator / tl.where(total == 0.0, 1.0, total)[:, None]
        dim = tl.arange(0, BLOCK_K)
        row = (first_row + index // GROUP) * output_row_stride
        head = (kv_head * GROUP + index % GROUP) * output_head_stride
        tl.store(
            output + (row + head)[:, None] + dim[None, :],
            rounded(attended, output.dtype.element_ty, INTERPRET_BF16),
            mask=live[:, None] & (dim < K)[None, :],
        )
