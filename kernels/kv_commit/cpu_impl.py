# SPDX-License-Identifier: Apache-2.0
"""commit_slots as one C++ op (cpu/commit_slots.cpp): too little work to pay for torch ops."""

import ctypes
import functools
import struct
from collections.abc import Callable
from pathlib import Path

import torch

from vllm_eagle_pangu.kernels.native import load_call

_CALL = struct.Struct("@3P3q")


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


@functools.cache
def _entry() -> Callable[[bytes], int]:
    """The C function; compiles the op unless an earlier process did."""
    folder = Path(__file__).parent / "cpu"
    return load_call("commit_slots", folder, _CALL, result=ctypes.c_int32)


prepare = _entry
