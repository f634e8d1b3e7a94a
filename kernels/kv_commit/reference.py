# SPDX-License-Identifier: Apache-2.0
"""Definition of kv_commit: only the accepted path reaches the pages."""

import torch

from vllm_eagle_pangu.kernels.kv_commit.layers import CommitLayers

ONCE = "commit: a slot is written twice"


def commit_slots(path_rows: torch.Tensor, linear_slots: torch.Tensor) -> torch.Tensor:
    """Page slot of each tree row, -1 for what must not be written: `[B, R] int64`.

    The i-th accepted node takes the slot of the i-th position after the root. Rejected and padding
    rows get -1, and so does the root, whose K/V the forward itself wrote.

    `path_rows: [B, D+1] int64`: as in `tree_accept.AcceptedPaths`; `linear_slots: [B, R] int64`:
    entry [b, i] is the slot of position t + i.
    """
    batch, rows = linear_slots.shape
    assert path_rows.shape[0] == batch, (linear_slots.shape, path_rows.shape)
    # A tree of fewer nodes than D has no longer path than that.
    reach = min(path_rows.shape[1], rows)
    path = path_rows[:, 1:reach]
    # Row 0 stands for "no node" beyond the path's length, and is -1 in any case.
    slots = linear_slots.new_full((batch, rows), -1)
    return slots.scatter_(1, path, linear_slots[:, 1:reach].masked_fill(path == 0, -1))


def assert_written_once(slots: torch.Tensor) -> None:
    """No slot but -1 occurs twice in `slots`; syncs with the device."""
    written = slots[slots >= 0]
    assert written.unique().numel() == written.numel(), ONCE


def commit_pages(layers: CommitLayers, slots: torch.Tensor) -> None:
    """Write the scratch rows whose slot is not -1 to the pages of all layers.

    For platforms whose pages `PagedKV` describes, contiguous ones on Ascend; others write with
    their own op. Slot s is place s % block_size of block s // block_size. What an implementation
    does not write, it says.

    `slots: [S] int64`, S at most the scratches' rows; no slot but -1 twice, which `commit_slots`
    cannot give and `assert_written_once` checks.
    """
    layers.check_rows(slots)
    kept = (slots >= 0).nonzero()[:, 0]
    block_size = layers.pages[0].shape[2]
    block, place = slots[kept] // block_size, slots[kept] % block_size
    for key, value, pages in zip(layers.keys, layers.values, layers.pages, strict=True):
        for scratch, to in ((key, pages.key), (value, pages.value)):
            rows = scratch[kept].to(to.dtype)
            if pages.in_amx_tiles:
                group = to.shape[3]
                to[block, :, place // group, place % group] = rows.unflatten(-1, to.shape[4:])
            else:
                to[block, :, place] = rows
