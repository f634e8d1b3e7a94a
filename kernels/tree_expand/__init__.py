# SPDX-License-Identifier: Apache-2.0
"""One level of tree growth (EAGLE-2, section 4.1: expansion)."""

import torch

from vllm_eagle_pangu.kernels.implementations import Implementations
from vllm_eagle_pangu.kernels.tree_expand.frontier import Candidates, Frontier

__all__ = ["Candidates", "Frontier", "prepare", "tree_expand"]

_OP = Implementations(__name__, "tree_expand")
prepare = _OP.prepare


def tree_expand(
    candidates: Candidates,
    above: Frontier | None,
    scores: torch.Tensor,
    tokens: torch.Tensor,
    implementation: str | None = None,
) -> Frontier:
    """Take the W best children of each row of `above`; the W best of all are the next frontier.

    Writes the children to their level of `candidates`. Equal scores go to the lower index. `above`
    None stands for the root: its W children are the first frontier, in the order given.

    `scores: [B, W, W]`, `tokens: [B, W, W] int64`, or `[B, W]` below the root: log-probabilities of
    any float dtype and tokens of the target, for each frontier row. A score is clamped to at most
    0, NaN counts as -inf.

    Raises:
        ValueError: `implementation` names none of the op's; None is the device's own.
    """
    return _OP.of(implementation, tokens.device)(candidates, above, scores, tokens)
