# SPDX-License-Identifier: Apache-2.0
"""draft_batch as one C++ op (cpu/draft_batch.cpp): too little work to pay for torch ops."""

import ctypes
import struct

import torch

from vllm_eagle_pangu.kernels.draft_batch.rows import DraftRows
from vllm_eagle_pangu.kernels.native import addresses, native_op
from vllm_eagle_pangu.kernels.tree_accept.paths import AcceptedPaths

_CALL = struct.Struct("@15P7q")
prepare = _entry = native_op(__file__, "draft_batch", _CALL, result=ctypes.c_int32)
_BYTES = {torch.int32: 4, torch.int64: 8}


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
    """See `reference.draft_batch`; all on the CPU, any strides.

    `input_ids: [N]`, `query_start: [B+1]`: int32 or int64; `is_tree: [B] bool`; all else int64.
    The results are slices of one tensor. Raises RuntimeError where the op cannot be compiled.
    """
    path, length, output = paths.rows, paths.length, paths.output
    batch = is_tree.shape[0]
    path_columns = path.shape[1]
    assert query_start.shape[0] == batch + 1 and next_tokens.shape[0] == batch
    assert path.shape == output.shape == (batch, path_columns) and path_columns > depth
    assert length.shape[0] == batch and is_tree.dtype == torch.bool
    assert positions.dtype == next_tokens.dtype == linear_slots.dtype == torch.int64
    assert path.dtype == length.dtype == output.dtype == torch.int64
    assert input_ids.is_cpu and path.is_cpu, "the cpp implementation takes CPU tensors"
    # Rows of a larger buffer's columns may come strided; what is contiguous is not copied.
    input_ids, positions = input_ids.contiguous(), positions.contiguous()
    query_start, is_tree = query_start.contiguous(), is_tree.contiguous()
    path, length, output = path.contiguous(), length.contiguous(), output.contiguous()
    next_tokens, linear_slots = next_tokens.contiguous(), linear_slots.contiguous()

    target_rows = min(input_ids.shape[0], positions.shape[0], linear_slots.shape[0])
    drafted = DraftRows.empty(batch, rows, input_ids.device)
    given = addresses(input_ids, positions, query_start, is_tree, path, length, output)
    given += addresses(next_tokens, linear_slots)
    written = addresses(drafted.tokens, drafted.positions, drafted.hidden_rows, drafted.slots)
    written += addresses(drafted.query_start, drafted.sample_rows)
    fits = _entry()(
        _CALL.pack(
            *given,
            *written,
            batch,
            depth,
            path_columns,
            _BYTES[input_ids.dtype],
            _BYTES[query_start.dtype],
            rows,
            target_rows,
        )
    )
    assert fits, (query_start, is_tree, rows, target_rows)
    return drafted
