# SPDX-License-Identifier: Apache-2.0
"""commit_slots and commit_pages in Triton: one launch each."""

import torch
import triton
import triton.language as tl

from vllm_eagle_pangu.kernels.kv_commit.layers import CommitLayers
from vllm_eagle_pangu.kernels.triton_runtime import launch

_TYPES = {
    torch.float32: tl.float32,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
}


@triton.jit(do_not_specialize=["rows", "path_columns"])
def _commit_slots_kernel(
    path,  # [B, path_columns] int64
    linear_slots,  # [B, R] int64
    slots,  # [B, R] int64, written
    rows,
    path_columns,
    ROWS: tl.constexpr,
    PATH: tl.constexpr,
):
    request = tl.program_id(0).to(tl.int64)
    row = tl.arange(0, ROWS)
    step = tl.arange(0, PATH)
    # Step 0 is the root. A tree of fewer nodes than D has no longer path than that.
    on_path = (step > 0) & (step < path_columns) & (step < rows)
    node = tl.load(path + request * path_columns + step, mask=on_path, other=0)
    # Row 0 stands for "no node" beyond the path's length.
    on_path = on_path & (node > 0)
    slot = tl.load(linear_slots + request * rows + step, mask=on_path, other=-1)
    # At most one step ends at a row: 1 + its slot, or 0.
    taken = (row[:, None] == node[None, :]) & on_path[None, :]
    found = tl.sum(tl.where(taken, slot[None, :] + 1, 0), axis=1)
    tl.store(slots + request * rows + row, found - 1, mask=row < rows)


def commit_slots(path_rows: torch.Tensor, linear_slots: torch.Tensor) -> torch.Tensor:
    """See `reference.commit_slots`; nothing waits for the device."""
    batch, rows = linear_slots.shape
    path_columns = path_rows.shape[1]
    assert path_rows.shape[0] == batch, (linear_slots.shape, path_rows.shape)
    slots = torch.empty(batch, rows, dtype=torch.int64, device=linear_slots.device)
    launch(
        _commit_slots_kernel,
        (batch,),
        *(path_rows, linear_slots, slots, rows, path_columns),
        ROWS=triton.next_power_of_2(rows),
        PATH=triton.next_power_of_2(path_columns),
        num_warps=1,
    )
    return slots


@triton.jit(do_not_specialize=["heads", "head_size"])
def _commit_pages_kernel(
    addresses,  # [L, 4] int64: key and value scratch, key and value pages
    slots,  # [S] int64
    scratch_row_stride,
    scratch_head_stride,
    key_block_stride,
    key_head_stride,
    key_slot_stride,
    key_element_stride,
    value_block_stride,
    value_head_stride,
    value_slot_stride,
    value_element_stride,
    heads,
    head_size,
    block_size,
    SCRATCH: tl.constexpr,
    PAGES: tl.constexpr,
    HEADS: tl.constexpr,
    ELEMENTS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    layer = tl.program_id(1)
    slot = tl.load(slots + row)
    if slot >= 0:
        head = tl.arange(0, HEADS)[:, None]
        element = tl.arange(0, ELEMENTS)[None, :]
        inside = (head < heads) & (element < head_size)
        source = row * scratch_row_stride + head * scratch_head_stride + element
        block = slot // block_size
        place = slot % block_size
        addresses += layer * 4
        key_at = (
            block * key_block_stride
            + head * key_head_stride
            + place * key_slot_stride
            + element * key_element_stride
        )
        value_at = (
            block * value_block_stride
            + head * value_head_stride
            + place * value_slot_stride
            + element * value_element_stride
        )
        key_from = tl.load(addresses).to(tl.pointer_type(SCRATCH))
        value_from = tl.load(addresses + 1).to(tl.pointer_type(SCRATCH))
        key_to = tl.load(addresses + 2).to(tl.pointer_type(PAGES))
        value_to = tl.load(addresses + 3).to(tl.pointer_type(PAGES))
        key = tl.load(key_from + source, mask=inside, other=0.0)
        value = tl.load(value_from + source, mask=inside, other=0.0)
        tl.store(key_to + key_at, key.to(PAGES), mask=inside)
        tl.store(value_to + value_at, value.to(PAGES), mask=inside)


def commit_pages(layers: CommitLayers, slots: torch.Tensor) -> None:
    """See `reference.commit_pages`; one launch for all layers."""
    layers.check_rows(slots)
    key, pages = layers.keys[0], layers.pages[0]
    _, heads, head_size = key.shape
    launch(
        _commit_pages_kernel,
        (slots.shape[0], len(layers.keys)),
        layers.addresses,
        slots,
        *key.stride()[:2],
        *pages.key.stride(),
        *pages.value.stride(),
        heads,
        head_size,
        pages.key.shape[2],
        SCRATCH=_TYPES[key.dtype],
        PAGES=_TYPES[pages.key.dtype],
        HEADS=triton.next_power_of_2(heads),
        ELEMENTS=triton.next_power_of_2(head_size),
        num_warps=4,
    )
