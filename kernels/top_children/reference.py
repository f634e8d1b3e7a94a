# SPDX-License-Identifier: Apache-2.0
"""Definition of top_children."""

import torch


def top_children(
    logits: torch.Tensor, width: int, target_ids: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The W most probable tokens of each row, best first; equal logits go to the lower index.

    Returns `scores: [N, W] float32`, log-probabilities over the whole row, computed in float32, and
    `tokens: [N, W] int64` in the target's vocabulary. A NaN logit counts as -inf; a row whose best
    logit is not finite scores -inf everywhere.

    `logits: [N, Vd]` float32, bfloat16 or float16, elements of a row adjacent, Vd >= W = `width`;
    `target_ids: [Vd] int64`, the target's id of each token, None where the vocabularies are one.
    """
    assert 1 <= width <= logits.shape[1], (width, logits.shape)
    logits = logits.float()
    logits = logits.masked_fill(logits.isnan(), -torch.inf)
    # Not topk: which of equal logits it takes is undefined.
    ordered, index = logits.sort(dim=-1, descending=True, stable=True)
    best, index = ordered[:, :width], index[:, :width]
    top = best[:, :1]
    scores = best - top - (logits - top).exp().sum(-1, keepdim=True).log()
    # A row whose maximum is infinite is no distribution: NaN here.
    scores = scores.masked_fill(scores.isnan(), -torch.inf)
    return scores, index if target_ids is None else target_ids[index]
