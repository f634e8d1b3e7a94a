# SPDX-License-Identifier: Apache-2.0
"""tree_expand as one C++ op (cpu/*.cpp)."""

import struct

import torch

from vllm_eagle_pangu.kernels.native import native_op
from vllm_eagle_pangu.kernels.tree_expand.frontier import Candidates, Frontier, level_slice

# Fields of `Call` in cpu/tree_expand.cpp.
_CALL = struct.Struct("@13P5q")
prepare = _entry = native_op(__file__, "tree_expand", _CALL)


def tree_expand(
    candidates: Candidates,
    above: Frontier | None,
    scores: torch.Tensor,
    tokens: torch.Tensor,
) -> Frontier:
    """As the reference."""
    batch, width = tokens.shape[0], tokens.shape[-1]
    capacity = candidates.tokens.shape[1]
    size = (batch, width)
    level, above_score, above_candidate, above_visible = 1, 0, 0, 0
    if above is not None:
        level = above.level + 1
        # Held until the call: a copy's memory must outlive its pointer.
        score, candidate = above.score.contiguous(), above.candidate.contiguous()
        visible = above.visible.contiguous()
        assert score.shape == candidate.shape == size, (score.shape, size)
        assert visible.shape == (batch, width, above.level * width), visible.shape
        above_score, above_candidate = score.data_ptr(), candidate.data_ptr()
        above_visible = visible.data_ptr()
    assert scores.shape == tokens.shape == (size if level == 1 else (*size, width)), scores.shape
    assert tokens.dtype == torch.int64 and candidates.tokens.shape[0] == batch
    kept = level_slice(width, level)
    assert kept.stop <= capacity, (level, capacity)
    scores, tokens = scores.float().contiguous(), tokens.contiguous()
    frontier = Frontier.empty(batch, width, level, tokens.device)
    call = _CALL.pack(
        scores.data_ptr(),
        tokens.data_ptr(),
        above_score,
        above_candidate,
        above_visible,
        candidates.tokens.data_ptr(),
        candidates.scores.data_ptr(),
        candidates.parents.data_ptr(),
        frontier.tokens.data_ptr(),
        frontier.score.data_ptr(),
        frontier.parent.data_ptr(),
        frontier.visible.data_ptr(),
        frontier.candidate.data_ptr(),
        batch,
        width,
        level,
        capacity,
        kept.start,
    )
    _entry()(call)
    return frontier
