# SPDX-License-Identifier: Apache-2.0
"""top_children as one C++ op (cpu/*.cpp)."""

import struct

import torch

from vllm_eagle_pangu.kernels.native import addresses, native_op

# Fields of `Call` in cpu/top_children.cpp.
_CALL = struct.Struct("@4P5q")
prepare = _entry = native_op(__file__, "top_children", _CALL)
_DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


def top_children(
    logits: torch.Tensor, width: int, target_ids: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `reference.top_children`; `target_ids` must be adjacent, too."""
    rows, vocab = logits.shape
    row_stride, stride = logits.stride()
    assert 1 <= width <= vocab, (width, vocab)
    assert stride == 1, "the logits of a row must be adjacent"
    assert logits.dtype in _DTYPES, f"top_children takes {list(_DTYPES)}, not {logits.dtype}"
    if target_ids is not None:
        assert target_ids.dtype == torch.int64 and target_ids.shape == (vocab,)
        assert target_ids.is_contiguous()
    scores = torch.empty((rows, width), dtype=torch.float32)
    tokens = torch.empty((rows, width), dtype=torch.int64)
    tensors = addresses(logits, target_ids, scores, tokens)
    _entry()(_CALL.pack(*tensors, rows, vocab, row_stride, width, _DTYPES[logits.dtype]))
    return scores, tokens
