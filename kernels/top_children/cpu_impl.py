# SPDX-License-Identifier: Apache-2.0
"""top_children as one C++ op (cpu/*.cpp)."""

import torch

from vllm_eagle_pangu.kernels.native import NativeOp

# Fields of `Call` in cpu/top_children.cpp.
_run = NativeOp(__file__, "top_children", "@4P5q")
prepare = _run.prepare
_DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


def top_children(
    logits: torch.Tensor, width: int, target_ids: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `reference.top_children`."""
    rows, vocab = logits.shape
    row_stride, stride = logits.stride()
    assert 1 <= width <= vocab, (width, vocab)
    assert stride == 1, "the logits of a row must be adjacent"
    assert logits.dtype in _DTYPES, f"top_children takes {list(_DTYPES)}, not {logits.dtype}"
    if target_ids is not None:
        assert target_ids.dtype == torch.int64 and target_ids.shape == (vocab,)
    scores = torch.empty((rows, width), dtype=torch.float32)
    tokens = torch.empty((rows, width), dtype=torch.int64)
    sizes = (rows, vocab, row_stride, width, _DTYPES[logits.dtype])
    _run(logits.data_ptr(), target_ids, scores, tokens, *sizes)
    return scores, tokens
