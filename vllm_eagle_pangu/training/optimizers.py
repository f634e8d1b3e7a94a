# SPDX-License-Identifier: Apache-2.0
"""Muon for hidden matrices, AdamW for everything else, driven as one."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

_NOT_FOR_MUON = ("embed_tokens", "lm_head")


class MuonWithAdamW:
    """Muon on the 2-D weights inside blocks, AdamW on embeddings, heads, norms and biases.

    Muon (Jordan et al. 2024, torch.optim.Muon) orthogonalises each update; at budgets of some
    ten million tokens it needs about half of AdamW's tokens for the same loss.
    """

    def __init__(
        self,
        model: nn.Module,
        matrix_lr: float,
        other_lr: float,
        matrix_weight_decay: float = 0.05,
        betas: tuple[float, float] = (0.9, 0.95),
    ) -> None:
        matrices: list[nn.Parameter] = []
        others: list[nn.Parameter] = []
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:
                continue
            is_matrix = parameter.ndim == 2 and not any(key in name for key in _NOT_FOR_MUON)
            (matrices if is_matrix else others).append(parameter)
        muon = torch.optim.Muon(matrices, lr=matrix_lr, weight_decay=matrix_weight_decay)
        adamw = torch.optim.AdamW(others, lr=other_lr, betas=betas, weight_decay=0.0)
        self._optimizers: tuple[torch.optim.Optimizer, ...] = (muon, adamw)
        self._peaks = (matrix_lr, other_lr)
        self._parameters = matrices + others

    def step(self, lr_factor: float, max_grad_norm: float) -> float:
        """Clip, update at `lr_factor` of the peak rates, clear gradients; the gradient norm."""
        norm = nn.utils.clip_grad_norm_(self._parameters, max_grad_norm)
        for optimizer, peak in zip(self._optimizers, self._peaks, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = peak * lr_factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return float(norm)

    def state_dict(self) -> list[dict[str, Any]]:
        return [optimizer.state_dict() for optimizer in self._optimizers]

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        for optimizer, state in zip(self._optimizers, states, strict=True):
            optimizer.load_state_dict(state)
