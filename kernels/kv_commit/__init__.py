# SPDX-License-Identifier: Apache-2.0
"""Accepted rows' K/V to pages."""

import torch

from vllm_eagle_pangu.kernels.implementations import Implementations
from vllm_eagle_pangu.kernels.kv_commit.layers import CommitLayers
from vllm_eagle_pangu.kernels.kv_commit.reference import assert_written_once

__all__ = [
    "CommitLayers",
    "assert_written_once",
    "commit_pages",
    "commit_slots",
    "prepare",
]

_OP = Implementations(__name__, "commit_slots")
prepare = _OP.prepare

_PAGES = Implementations(
    __name__,
    "commit_pages",
    reference="reference",
    cpp="cpu_impl",
    triton="triton_impl",
    # Ascend, by its own cache writes: A2 and A3, and A5.
    npu="npu_impl",
    npu_a5="npu_a5_impl",
)


def commit_slots(
    path_rows: torch.Tensor, linear_slots: torch.Tensor, implementation: str | None = None
) -> torch.Tensor:
    """Page slot of each tree row, -1 for what must not be written: `[B, R] int64`.

    The i-th accepted node takes the slot of the i-th position after the root. Rejected and padding
    rows get -1, and so does the root, whose K/V the forward itself wrote.

    `path_rows: [B, D+1] int64`: as in `tree_accept.AcceptedPaths`; `linear_slots: [B, R] int64`:
    entry [b, i] is the slot of position t + i.

    Raises:
        ValueError: `implementation` names none of the op's; None is the device's own.
    """
    return _OP.of(implementation, linear_slots.device)(path_rows, linear_slots)


def commit_pages(
    layers: CommitLayers, slots: torch.Tensor, implementation: str | None = None
) -> None:
    """Write the scratch rows whose slot is not -1 to the pages of all layers.

    For platforms whose pages `PagedKV` describes, contiguous ones on Ascend; others write with
    their own op. Slot s is place s % block_size of block s // block_size.

    `slots: [S] int64`, S at most the scratches' rows; no slot but -1 twice, which `commit_slots`
    cannot give and `assert_written_once` checks.

    Raises:
        ValueError: `implementation` is not "reference", "cpp", "triton", "npu" or "npu_a5"; None is
            the device's own. What it does not write: see the implementation.
    """
    assert slots.shape[0] <= layers.keys[0].shape[0], (slots.shape, layers.keys[0].shape)
    _PAGES.of(implementation, slots.device)(layers, slots)
