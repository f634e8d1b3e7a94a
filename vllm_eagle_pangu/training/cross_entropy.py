# SPDX-License-Identifier: Apache-2.0
"""Soft cross-entropy in chunks that stay in the cache, with each row's most likely class."""

from typing import Any

import torch
from torch import Tensor


class ChunkedCrossEntropy(torch.autograd.Function):
    """Gradients are made in the forward pass, so that the [N, V] logits never exist as a whole.

    On two CPU cores this is about twice as fast as torch's linear + cross_entropy for V of some
    thousands; torch 2.13's linear_cross_entropy gives no most likely class.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, row_weights: Tensor, rows: int
    ) -> tuple[Tensor, Tensor]:
        low, low_weight = hidden.to(torch.bfloat16), weight.to(torch.bfloat16)
        grad_hidden = torch.empty_like(low)
        grad_weight = torch.zeros_like(weight, dtype=torch.float32)
        best = torch.empty(hidden.shape[0], dtype=torch.int64, device=hidden.device)
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        for start in range(0, hidden.shape[0], rows):
            part = slice(start, start + rows)
            wanted, scale = targets[part], row_weights[part, None]
            log_probs = torch.log_softmax((low[part] @ low_weight.T).float(), dim=-1)
            best[part] = log_probs.argmax(dim=-1)
            total -= ((wanted.float() * log_probs).sum(-1, keepdim=True) * scale).sum()
            grad = log_probs.exp_().sub_(wanted).mul_(scale).to(torch.bfloat16)
            grad_hidden[part] = grad @ low_weight
            grad_weight += grad.T @ low[part]
        ctx.save_for_backward(grad_hidden.to(hidden.dtype), grad_weight.to(weight.dtype))
        ctx.mark_non_differentiable(best)
        return total, best

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor, _: Tensor) -> tuple[Tensor, Tensor, None, None, None]:  # type: ignore[override]
        grad_hidden, grad_weight = ctx.saved_tensors
        return grad_hidden * grad_loss, grad_weight * grad_loss, None, None, None


def chunked_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, row_weights: Tensor, rows: int = 512
) -> tuple[Tensor, Tensor]:
    """Sum over rows of row_weights * CE(targets, softmax(hidden @ weight.T)).

    Args:
        hidden: [N, H]; weight: [V, H].
        targets: [N, V] probabilities; row_weights: [N] float32.

    Returns:
        scalar float32 loss, and each row's most likely class [N] int64.
    """
    return ChunkedCrossEntropy.apply(hidden, weight, targets, row_weights, rows)
