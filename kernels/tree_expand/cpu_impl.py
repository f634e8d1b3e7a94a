# SPDX-License-Identifier: Apache-2.0
"""tree_expand as one C++ op (cpu/*.cpp)."""

import torch

from vllm_eagle_pangu.kernels.native import NativeOp
from vllm_eagle_pangu.kernels.tree_expand.frontier import Candidates, Frontier, level_slice

# Fields of `Call` in cpu/tree_expand.cpp.
_run = NativeOp(__file__, "tree_expand", "@13P5q")
prepare = _run.prepare


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
        score, candidate, visible = above.score, above.candidate, above.visible
        assert score.shape == candidate.shape == size, (score.shape, size)
        assert visible.shape == (batch, width, above.level * width), visible.shape
    assert scores.shape == tokens.shape == (size if level == 1 else (*size, width)), scores.shape
    assert tokens.dtype == torch.int64 and candidates.tokens.shape[0] == batch
    kept = level_slice(width, level)
    assert kept.stop <= capacity, (level, capacity)
    frontier = Frontier.empty(batch, width, level, tokens.device)
    given = (scores.float(), tokens, score, candidate, visible)
    *written, _ = vars(frontier).values()
    sizes = (batch, width, level, capacity, kept.start)
    _run(*given, *vars(candidates).values(), *written, *sizes)
    return frontier
