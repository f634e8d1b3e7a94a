# SPDX-License-Identifier: Apache-2.0
"""Definition of top_children."""

import torch


def top_children(
    logits: torch.Tensor, width: int, target_ids: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """As the face of the package; computed in float32."""
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
