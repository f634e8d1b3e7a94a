# SPDX-License-Identifier: Apache-2.0
"""The paged prefix in Triton: as a part of a larger kernel, or split over programs.

Scores are in units of log 2.
"""

import triton
import triton.language as tl


@triton.jit
def dot(a, b, accumulator, INTERPRET_BF16: tl.constexpr):
    """`a @ b + accumulator` in float32."""
    if INTERPRET_BF16:
        # Triton's interpreter multiplies the bit patterns of bfloat16.
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, accumulator, input_precision="ieee")


@triton.jit
def rounded(x, dtype: tl.constexpr, INTERPRET_BF16: tl.constexpr):
    """`x`, float32, as `dtype`."""
    if INTERPRET_BF16:
        # Triton's interpreter cuts to bfloat16: half a unit more, ties to even, makes it rounding.
        bits = x.to(tl.int32, bitcast=True)
        x = (bits + 0x7FFF + ((bits >> 16) & 1)).to(tl.float32, bitcast=True)
    return x.to(dtype)


@triton.jit
def fold(scores, value, peak, total, accumulator, INTERPRET_BF16: tl.constexpr):
    """Takes one tile of keys into the running softmax; scores of unseen keys are -inf."""
    new_peak = tl.maximum(peak, tl.max(scores, axis=1))
    # -inf - -inf is NaN: a row that has seen nothing yet is measured from 0.
    origin = tl.where(new_peak == float("-inf"), 0.0, new_peak)
    weights = tl.exp2(scores - origin[:, None])
    shrink = tl.exp2(peak - origin)
    total = total * shrink + tl.sum(weights, axis=1)
    weights = rounded(weights, value.dtype, INTERPRET_BF16)
    accumulator = dot(weights, value, accumulator * shrink[:, None], INTERPRET_BF16)
    return new_peak, total, accumulator


@triton.jit
def load_query(
    query,
    first_row,
    kv_head,
    index,
    live,
    row_stride,
    head_stride,
    GROUP: tl.constexpr,
    K: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """`[BLOCK_M, BLOCK_K]`; `index`: tree row * GROUP + query head within the group."""
    dim = tl.arange(0, BLOCK_K)
    row = (first_row + index // GROUP) * row_stride
    head = (kv_head * GROUP + index % GROUP) * head_stride
    return tl.load(
        query + (row + head)[:, None] + dim[None, :],
        mask=live[:, None] & (dim < K)[None, :],
        other=0.0,
    )


@triton.jit
def attend_prefix(
    q,  # [BLOCK_M, BLOCK_K]
    page_key,  # of one KV head
    page_value,
    table,  # of one request
    first,
    end,
    scale,
    key_block_stride,
    key_slot_stride,
    key_dim_stride,
    value_block_stride,
    value_slot_stride,
    value_dim_stride,
    K: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    INTERPRET_BF16: tl.constexpr,
):
    """Running softmax of paged keys `first .. end`, which every row sees."""
    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    accumulator = tl.zeros([BLOCK_M, BLOCK_K], tl.float32)
    dim = tl.arange(0, BLOCK_K)
    in_head = dim < K
    for start in range(first, end, BLOCK_N):
        position = start + tl.arange(0, BLOCK_N)
        live = position < end
        page = tl.load(table + position // PAGE, mask=live, other=0).to(tl.int64)
        slot = (position % PAGE).to(tl.int64)
        key_at = page * key_block_stride + slot * key_slot_stride
        k = tl.load(
            page_key + key_at[None, :] + (dim * key_dim_stride)[:, None],
            mask=live[None, :] & in_head[:, None],
            other=0.0,
        )
        scores = dot(q, k, tl.zeros([BLOCK_M, BLOCK_N], tl.float32), INTERPRET_BF16) * scale
        scores = tl.where(live[None, :], scores, float("-inf"))
        value_at = page * value_block_stride + slot * value_slot_stride
        v = tl.load(
            page_value + value_at[:, None] + (dim * value_dim_stride)[None, :],
            mask=live[:, None] & in_head[None, :],
            other=0.0,
        )
        peak, total, accumulator = fold(scores, v, peak, total, accumulator, INTERPRET_BF16)
    return peak, total, accumulator


@triton.jit
def split_length(keys, splits, BLOCK_N: tl.constexpr):
    """Keys per split: whole tiles, so few attended keys leave the last splits empty."""
    return tl.cdiv(tl.cdiv(keys, splits), BLOCK_N) * BLOCK_N


@triton.jit(do_not_specialize=["splits", "most_rows"])
def prefix_split_kernel(
    query,
    page_key,
    page_value,
    block_table,
    prefix_start,  # None unless WINDOW
    prefix_len,
    query_start,
    query_count,
    partial,  # [T, Hk, splits, most_rows, K] float32
    partial_lse,  # [T, Hk, splits, most_rows] float32
    scale,
    splits,
    most_rows,
    query_row_stride,
    query_head_stride,
    page_key_block_stride,
    page_key_head_stride,
    page_key_slot_stride,
    page_key_dim_stride,
    page_value_block_stride,
    page_value_head_stride,
    page_value_slot_stride,
    page_value_dim_stride,
    table_stride,
    WINDOW: tl.constexpr,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    K: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    INTERPRET_BF16: tl.constexpr,
):
    """One split of a request's attended prefix; writes nothing where the split is empty."""
    kv_head = (tl.program_id(1) // splits).to(tl.int64)
    split = tl.program_id(1) % splits
    request = tl.program_id(2).to(tl.int64)
    index = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    rows = tl.load(query_count + request) * GROUP
    prefix = tl.load(prefix_len + request)
    start = tl.load(prefix_start + request) if WINDOW else 0
    length = split_length(prefix - start, splits, BLOCK_N)
    first = start + split * length
    if (tl.program_id(0) * BLOCK_M < rows) & (first < prefix):
        live = index < rows
        first_row = tl.load(query_start + request).to(tl.int64)
        q = load_query(
            query, first_row, kv_head, index, live, query_row_stride, query_head_stride,
            GROUP, K, BLOCK_K,
        )  # fmt: skip
        peak, total, accumulator = attend_prefix(
            q,
            page_key + kv_head * page_key_head_stride,
            page_value + kv_head * page_value_head_stride,
            block_table + request * table_stride,
            first, tl.minimum(first + length, prefix), scale,
            page_key_block_stride, page_key_slot_stride, page_key_dim_stride,
            page_value_block_stride, page_value_slot_stride, page_value_dim_stride,
            K, PAGE, BLOCK_M, BLOCK_N, BLOCK_K, INTERPRET_BF16,
        )  # fmt: skip
        dim = tl.arange(0, BLOCK_K)
        at = ((request * HEADS + kv_head) * splits + split) * most_rows + index
        tl.store(partial_lse + at, peak + tl.log2(total), mask=live)
        tl.store(
            partial + (at * K)[:, None] + dim[None, :],
            accumulator / total[:, None],
            mask=live[:, None] & (dim < K)[None, :],
        )


@triton.jit
def merge_splits(
    partial,  # of one request and KV head
    partial_lse,
    count,
    index,
    live,
    most_rows,
    K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Running softmax of the first `count` splits."""
    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    accumulator = tl.zeros([BLOCK_M, BLOCK_K], tl.float32)
    dim = tl.arange(0, BLOCK_K)
    for split in range(0, count):
        at = index.to(tl.int64) + split * most_rows
        lse = tl.load(partial_lse + at, mask=live, other=0.0)
        part = tl.load(
            partial + (at * K)[:, None] + dim[None, :],
            mask=live[:, None] & (dim < K)[None, :],
            other=0.0,
        )
        new_peak = tl.maximum(peak, lse)
        shrink = tl.exp2(peak - new_peak)
        weight = tl.exp2(lse - new_peak)
        total = total * shrink + weight
        accumulator = accumulator * shrink[:, None] + part * weight[:, None]
        peak = new_peak
    return peak, total, accumulator
