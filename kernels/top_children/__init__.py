# SPDX-License-Identifier: Apache-2.0
"""The best children of drafted rows: logits to log-probabilities and target tokens."""

import torch

from vllm_eagle_pangu.kernels.implementations import Implementations

__all__ = ["prepare", "top_children"]

_OP = Implementations(__name__, "top_children")
prepare = _OP.prepare


def top_children(
    logits: torch.Tensor,
    width: int,
    target_ids: torch.Tensor | None,
    implementation: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The W most probable tokens of each row, best first; equal logits go to the lower index.

    Returns `scores: [N, W] float32`, log-probabilities over the whole row, and `tokens: [N, W]
    int64` in the target's vocabulary. A NaN logit counts as -inf; a row whose best logit is not
    finite scores -inf everywhere.

    `logits: [N, Vd]` float32, bfloat16 or float16, elements of a row adjacent, Vd >= W = `width`;
    `target_ids: [Vd] int64`, the target's id of each token, None where the vocabularies are one.

    Raises:
        ValueError: `implementation` names none of the op's; None is the device's own.
    """
    return _OP.of(implementation, logits.device)(logits, width, target_ids)
