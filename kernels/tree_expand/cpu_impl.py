# SPDX-License-Identifier: Apache-2.0
"""tree_expand as one C++ op (cpu/*.cpp)."""

import struct

import torch

from vllm_eagle_pangu.kernels.native import addresses, native_op
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
    """See `reference.tree_expand`."""
    batch, width = tokens.shape[0], tokens.shape[-1]
    capacity = candidates.tokens.shape[1]
    size = (batch, width)
    level, score, candidate, visible = 1, None, None, None
    if above is not None:
        level = above.level + 1
        score, candidate = above.score.contiguous(), above.candidate.contiguous()
        visible = above.visible.contiguous()
        assert score.shape == candidate.shape == size, (score.shape, size)
        assert visible.shape == (batch, width, above.level * width), visible.shape
    assert scores.shape == tokens.shape == (size if level == 1 else (*size, width)), scores.shape
    assert tokens.dtype == torch.int64 and candidates.tokens.shape[0] == batch
    kept = level_slice(width, level)
    assert kept.stop <= capacity, (level, capacity)
    scores, tokens = scores.float().contiguous(), tokens.contiguous()
    frontier = Frontier.empty(batch, width, level, tokens.device)
    tensors = addresses(scores, tokens, score, candidate, visible, *vars(candidates).values())
    tensors += addresses(
        frontier.tokens, frontier.score, frontier.parent, frontier.visible, frontier.candidate
    )
    _entry()(_CALL.pack(*tensors, batch, width, level, capacity, kept.start))
    return frontier
