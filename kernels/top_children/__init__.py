# SPDX-License-Identifier: Apache-2.0
"""The best children of drafted rows: logits to log-probabilities and target tokens."""

import torch

from vllm_eagle_pangu.kernels.top_children import reference
from vllm_eagle_pangu.kernels.top_children.cpu_impl import compile_entry, cpu_top_children

__all__ = ["IMPLEMENTATIONS", "prepare", "top_children"]

_RUN = {"reference": reference.top_children, "cpp": cpu_top_children}
IMPLEMENTATIONS = tuple(_RUN)


def top_children(
    logits: torch.Tensor,
    width: int,
    target_ids: torch.Tensor | None,
    implementation: str = "reference",
) -> tuple[torch.Tensor, torch.Tensor]:
    """The W most probable tokens of each row, best first; equal logits go to the lower index.

    Returns `scores: [N, W] float32`, log-probabilities over the whole row, and `tokens: [N, W]
    int64` in the target's vocabulary. A NaN logit counts as -inf; a row whose best logit is not
    finite scores -inf everywhere.

    `logits: [N, Vd]` float32, bfloat16 or float16, elements of a row adjacent, Vd >= W = `width`;
    `target_ids: [Vd] int64`, the target's id of each token, None where the vocabularies are one.

    Raises:
        ValueError: `implementation` is not one of `IMPLEMENTATIONS`.
    """
    _check(implementation)
    return _RUN[implementation](logits, width, target_ids)


def prepare(implementation: str) -> None:
    """Make an implementation ready to run, compiling it where needed: at start-up.

    Raises:
        ValueError: `implementation` is not one of `IMPLEMENTATIONS`.
        RuntimeError: it cannot run on this machine; the message says why and what to do.
    """
    _check(implementation)
    if implementation == "cpp":
        compile_entry()


def _check(implementation: str) -> None:
    if implementation not in _RUN:
        raise ValueError(
            f"top_children: implementation={implementation!r} is unknown; use one of "
            + ", ".join(map(repr, IMPLEMENTATIONS))
        )
