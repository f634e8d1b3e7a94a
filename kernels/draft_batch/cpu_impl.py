# SPDX-License-Identifier: Apache-2.0
"""draft_batch as one C++ op (cpu/draft_batch.cpp): too little work to pay for torch ops."""

import ctypes

import torch

from vllm_eagle_pangu.kernels.draft_batch.reference import DraftRows
from vllm_eagle_pangu.kernels.native import NativeOp
from vllm_eagle_pangu.kernels.tree_accept.reference import AcceptedPaths

_run = NativeOp(__file__, "draft_batch", "@15P7q", result=ctypes.c_int32)
prepare = _run.prepare
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
    path, length, output = vars(paths).values()
    batch, path_columns = path.shape
    assert query_start.shape[0] == batch + 1 and next_tokens.shape[0] == batch
    assert path.shape == output.shape and path_columns > depth
    assert length.shape == is_tree.shape == (batch,) and is_tree.dtype == torch.bool
    assert positions.dtype == next_tokens.dtype == linear_slots.dtype == torch.int64
    assert path.dtype == length.dtype == output.dtype == torch.int64
    assert input_ids.is_cpu and path.is_cpu, "the cpp implementation takes CPU tensors"
    target_rows = min(input_ids.shape[0], positions.shape[0], linear_slots.shape[0])
    drafted = DraftRows.empty(batch, rows, input_ids.device)
    given = (input_ids, positions, query_start, is_tree, path, length, output, next_tokens)
    sizes = (batch, depth, path_columns, _BYTES[input_ids.dtype], _BYTES[query_start.dtype])
    fits = _run(*given, linear_slots, *vars(drafted).values(), *sizes, rows, target_rows)
    assert fits, (query_start, is_tree, rows, target_rows)
    return drafted
