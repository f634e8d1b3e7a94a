# SPDX-License-Identifier: Apache-2.0
"""draft_batch in Triton: one launch, one program per request."""

import torch
import triton
import triton.language as tl

from vllm_eagle_pangu.kernels.draft_batch.reference import DraftRows
from vllm_eagle_pangu.kernels.tree_accept.reference import AcceptedPaths
from vllm_eagle_pangu.kernels.triton_runtime import launch

# Rows that a program fills at a time: a tree has D+1, a prefill chunk many.
BLOCK = 64


@triton.jit(
    do_not_specialize=["batch", "target_rows", "depth", "path_columns"],
    # They share one allocation: a batch of an odd number of rows would be compiled for anew.
    do_not_specialize_on_alignment=[
        "draft_tokens", "draft_positions", "draft_hidden_rows", "draft_slots", "draft_starts",
        "sample_rows",
    ],
)  # fmt: skip
def _draft_batch_kernel(
    input_ids,  # [N] int32 or int64
    positions,  # [N] int64
    query_start,  # [B+1] int32 or int64
    is_tree,  # [B] int8
    path_rows,  # [B, path_columns] int64
    path_length,  # [B] int64
    path_output,  # [B, path_columns] int64
    next_tokens,  # [B] int64
    linear_slots,  # [N] int64
    draft_tokens,  # [rows] int64, written; so are the following
    draft_positions,  # as draft_tokens, so are the next two
    draft_hidden_rows,
    draft_slots,
    draft_starts,  # [B+1]
    sample_rows,  # [B]
    batch,
    target_rows,
    depth,
    path_columns,
    BATCH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    # Program b < B serves request b; program B ends the table.
    request = tl.program_id(0)
    other = tl.arange(0, BATCH)
    before = other < request
    other_count = (
        tl.load(query_start + other + 1, mask=before, other=0)
        - tl.load(query_start + other, mask=before, other=0)
    ).to(tl.int64)
    other_tree = tl.load(is_tree + other, mask=before, other=0) != 0
    other_count = tl.where(other_tree & before, depth + 1, other_count)
    start = tl.sum(other_count)
    tl.store(draft_starts + request, start)

    served = request < batch
    first = tl.load(query_start + request, mask=served, other=0).to(tl.int64)
    end = tl.load(query_start + request + 1, mask=served, other=0).to(tl.int64)
    on_tree = tl.load(is_tree + request, mask=served, other=0) != 0
    length = tl.load(path_length + request, mask=served, other=0)
    next_token = tl.load(next_tokens + request, mask=served, other=0)
    last = end - first - 1
    count = tl.where(on_tree, depth + 1, end - first)
    # The last row that is not padding: of a chain all are none.
    length = tl.where(on_tree, length, last)
    tl.store(sample_rows + request, start + length, mask=served)

    for begin in range(0, count, BLOCK):
        index = begin + tl.arange(0, BLOCK)
        inside = index < count
        # Bounds, not masks with a scalar: Triton's interpreter loses the type of those.
        on_path = index < tl.where(on_tree, count, 0)
        padded = index > length
        # A tree cut by the scheduler may have fewer target rows than D+1: padding repeats the last.
        linear_row = tl.where(inside, first + tl.minimum(index, last), 0)
        shifted = tl.load(
            input_ids + linear_row + 1, mask=inside & (linear_row + 1 < target_rows), other=0
        ).to(tl.int64)
        chain_token = tl.where(index < last, shifted, next_token)
        at = request.to(tl.int64) * path_columns + index
        token = tl.where(on_tree, tl.load(path_output + at, mask=on_path, other=0), chain_token)
        row = first + tl.load(path_rows + at, mask=on_path, other=0)
        position = tl.load(positions + linear_row, mask=inside, other=0)
        slot = tl.load(linear_slots + linear_row, mask=inside, other=-1)
        to = start + index
        tl.store(draft_tokens + to, tl.where(padded, 0, token), mask=inside)
        tl.store(draft_positions + to, position, mask=inside)
        tl.store(draft_hidden_rows + to, tl.where(on_tree, row, linear_row), mask=inside)
        tl.store(draft_slots + to, tl.where(padded, -1, slot), mask=inside)


def draft_batch(
    input_ids: torch.Tensor,
    positions: torch.Tensor,
    query_start: torch.Tensor,
    is_tree: torch.Tensor,
    paths: AcceptedPaths,
    next_tokens: torch.Tensor,
    linear_slots: torch.Tensor,
    depth: int,
    rows: int,
) -> DraftRows:
    """See `reference.draft_batch`; nothing waits for the device."""
    batch, path_columns = paths.rows.shape
    drafted = DraftRows.empty(batch, rows, input_ids.device)
    launch(
        _draft_batch_kernel,
        (batch + 1,),
        *(input_ids, positions, query_start, is_tree, *vars(paths).values()),
        *(next_tokens, linear_slots, *vars(drafted).values()),
        *(batch, input_ids.shape[0], depth, path_columns),
        BATCH=triton.next_power_of_2(max(batch, 1)),
        BLOCK=BLOCK,
        num_warps=1,
    )
    return drafted
