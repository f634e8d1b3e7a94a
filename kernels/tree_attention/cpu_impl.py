# SPDX-License-Identifier: Apache-2.0
"""Tree attention as one C++ op (cpu/*.cpp): paged prefix and dense tree in a single pass.

Everything is packed into one block of 8-byte fields, in the order of cpu/call.h: a decode step
calls this once per layer, so the way in has to cost microseconds.
"""

import functools

import torch

from vllm_eagle_pangu.kernels.native import NativeOp
from vllm_eagle_pangu.kernels.tree_attention.call import AttentionCall

_CALL = "@14P6q2q2q2q2q4q4qq3qd"


def tree_attention(call: AttentionCall) -> None:
    """Writes the attention of every tree request's query rows into `output`.

    query, output: [N, H, K]; key, value: [X, Hk, K]; pages: [blocks, Hk, block_size, K] each, any
    strides (fastest where slots, or the K elements, of `pages.key` are adjacent), or in AMX tiles;
    all of one dtype: float32, bfloat16 or float16, computed in float32.

    Pages without a slot in prefix_start .. prefix_len are not read; slots outside of it, and dense
    rows that no query row sees, are never multiplied with anything. Indices are trusted. Raises
    RuntimeError where the op cannot be compiled.
    """
    call.check_sizes()
    query, key, value, pages, rows, scale, output = call
    block_table, visible = rows.block_table, rows.visible
    _, Hk, block_size, K = pages.shape
    query_stride, key_stride, value_stride = query.stride(), key.stride(), value.stride()
    output_stride = output.stride()
    assert query_stride[2] == key_stride[2] == value_stride[2] == output_stride[2] == 1, (
        "the elements of a head must be adjacent in query, key, value and output"
    )
    tensors = (
        *(query, key, value, pages.key, pages.value, output, block_table, rows.prefix_start),
        *(rows.prefix_len, rows.query_start, rows.query_count, rows.key_start, rows.key_count),
        visible,
    )
    op = _op(query.dtype)
    packed = op.pack(
        *[0 if tensor is None else tensor.data_ptr() for tensor in tensors],
        *(visible.shape[0], query.shape[1], Hk, K, block_size, pages.in_amx_tiles),
        *query_stride[:2],
        *key_stride[:2],
        *value_stride[:2],
        *output_stride[:2],
        *pages.key.stride()[:4],
        *pages.value.stride()[:4],
        block_table.stride(0),
        *visible.stride(),
        scale,
    )
    op.entry(packed)


@functools.cache
def _op(dtype: torch.dtype) -> NativeOp:
    names = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
    assert dtype in names, f"tree attention takes {', '.join(names.values())}, not {dtype}"
    return NativeOp(__file__, "tree_attention", _CALL, f"tree_attention_{names[dtype]}")


def prepare(dtype: torch.dtype) -> None:
    """Compile the op unless an earlier process did."""
    _op(dtype).prepare()
