# SPDX-License-Identifier: Apache-2.0
"""One level of tree growth (EAGLE-2, section 4.1: expansion)."""

import torch

from vllm_eagle_pangu.kernels.tree_expand import reference
from vllm_eagle_pangu.kernels.tree_expand.cpu_impl import compile_entry, cpu_tree_expand
from vllm_eagle_pangu.kernels.tree_expand.frontier import Candidates, Frontier

__all__ = ["IMPLEMENTATIONS", "Candidates", "Frontier", "prepare", "tree_expand"]

_RUN = {"reference": reference.tree_expand, "cpp": cpu_tree_expand}
IMPLEMENTATIONS = tuple(_RUN)


def tree_expand(
    candidates: Candidates,
    above: Frontier | None,
    scores: torch.Tensor,
    tokens: torch.Tensor,
    implementation: str = "reference",
) -> Frontier:
    """Take the W best children of each row of `above`; the W best of all are the next frontier.

    Writes the children to their level of `candidates`. Equal scores go to the lower index. `above`
    None stands for the root: its W children are the first frontier, in the order given.

    `scores: [B, W, W]`, `tokens: [B, W, W] int64`, or `[B, W]` below the root: log-probabilities of
    any float dtype and tokens of the target, for each frontier row. A score is clamped to at most
    0, NaN counts as -inf.

    Raises:
        ValueError: `implementation` is not one of `IMPLEMENTATIONS`.
    """
    _check(implementation)
    return _RUN[implementation](candidates, above, scores, tokens)


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
            f"tree_expand: implementation={implementation!r} is unknown; use one of "
            + ", ".join(map(repr, IMPLEMENTATIONS))
        )
