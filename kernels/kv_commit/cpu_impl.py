# SPDX-License-Identifier: Apache-2.0
"""commit_slots as one C++ op (cpu/commit_slots.cpp): too little work to pay for torch ops."""

import ctypes
import struct

import torch

from vllm_eagle_pangu.kernels.native import native_op

_CALL = struct.Struct("@3P3q")
prepare = _entry = native_op(__file__, "commit_slots", _CALL, result=ctypes.c_int32)


def commit_slots(path_rows: torch.Tensor, linear_slots: torch.Tensor) -> torch.Tensor:
    """See `reference.commit_slots`; int64, all on the CPU, any strides.

    Raises RuntimeError where the op cannot be compiled.
    """
    batch, rows = linear_slots.shape
    path_batch, path_columns = path_rows.shape
    assert path_batch == batch, (linear_slots.shape, path_rows.shape)
    assert path_rows.dtype == linear_slots.dtype == torch.int64, path_rows.dtype
    assert path_rows.is_cpu and linear_slots.is_cpu, "the cpp implementation takes CPU tensors"
    path, linear_slots = path_rows.contiguous(), linear_slots.contiguous()
    slots = torch.empty(batch, rows, dtype=torch.int64)
    in_tree = _entry()(
        _CALL.pack(
            path.data_ptr(), linear_slots.data_ptr(), slots.data_ptr(), batch, rows, path_columns
        )
    )
    assert in_tree, "commit: a path leaves its tree"
    return slots
