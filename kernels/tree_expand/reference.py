# SPDX-License-Identifier: Apache-2.0
"""Definition of tree_expand."""

import torch

from vllm_eagle_pangu.kernels.indices import identity, index_range
from vllm_eagle_pangu.kernels.tree_expand.frontier import Candidates, Frontier, level_slice


def tree_expand(
    candidates: Candidates,
    above: Frontier | None,
    scores: torch.Tensor,
    tokens: torch.Tensor,
) -> Frontier:
    """Take the W best children of each row of `above`; the W best of all are the next frontier.

    Writes the children to their level of `candidates`. Equal scores go to the lower index. `above`
    None stands for the root: its W children are the first frontier, in the order given.

    `scores: [B, W, W]`, `tokens: [B, W, W] int64`, or `[B, W]` below the root: log-probabilities of
    any float dtype and tokens of the target, for each frontier row. A score is clamped to at most
    0, NaN counts as -inf.
    """
    batch, width = tokens.shape[0], tokens.shape[-1]
    score = _log_probabilities(scores)
    own = identity(width, tokens.device).expand(batch, width, width)
    if above is None:
        parent = torch.zeros_like(tokens)
        _keep(candidates, level_slice(width, 1), tokens, score, parent)
        candidate = (index_range(width, tokens.device) + 1).expand(batch, width)
        return Frontier(tokens, score, parent, own, candidate, level=1)

    level = above.level + 1
    kept = level_slice(width, level)
    child_score = (score + above.score[:, :, None]).flatten(1)
    child_token = tokens.flatten(1)
    child_parent = above.candidate.repeat_interleave(width, dim=1)
    _keep(candidates, kept, child_token, child_score, child_parent)

    # Not topk: which of equal scores it takes is undefined.
    order = child_score.argsort(dim=1, descending=True, stable=True)[:, :width]
    parent = order.div(width, rounding_mode="floor")
    inherited = above.visible.gather(1, parent[:, :, None].expand(-1, -1, above.visible.shape[2]))
    return Frontier(
        tokens=child_token.gather(1, order),
        score=child_score.gather(1, order),
        parent=parent,
        visible=torch.cat((inherited, own), dim=2),
        candidate=order + (kept.start + 1),
        level=level,
    )


def _keep(
    candidates: Candidates,
    level: slice,
    tokens: torch.Tensor,
    scores: torch.Tensor,
    parents: torch.Tensor,
) -> None:
    candidates.tokens[:, level] = tokens
    candidates.scores[:, level] = scores
    candidates.parents[:, level] = parents


def _log_probabilities(scores: torch.Tensor) -> torch.Tensor:
    """float32, at most 0: a drafter's rounding must not let a child outrank its parent."""
    return scores.float().nan_to_num(nan=-torch.inf, posinf=0.0, neginf=-torch.inf).clamp(max=0.0)
