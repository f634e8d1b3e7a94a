# SPDX-License-Identifier: Apache-2.0
"""Draft candidates to trees."""

import torch

from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.core.tree import TreeBatch
from vllm_eagle_pangu.kernels.tree_build import reference
from vllm_eagle_pangu.kernels.tree_build.cpu_impl import compile_entry, cpu_tree_build

__all__ = ["IMPLEMENTATIONS", "prepare", "tree_build"]

_RUN = {"reference": reference.tree_build, "cpp": cpu_tree_build}
IMPLEMENTATIONS = tuple(_RUN)


def tree_build(
    root_tokens: torch.Tensor,
    tokens: torch.Tensor,
    scores: torch.Tensor,
    parents: torch.Tensor,
    shape: TreeShape,
    implementation: str = "reference",
) -> TreeBatch:
    """Keep the `shape.nodes` best candidates of each request, closed under ancestors.

    Equal scores go to the lower index, NaN counts as -inf, and -inf is never kept. A child's score
    is first lowered to its parent's. Nodes come in candidate order.

    `root_tokens: [B] int64`; `tokens: [B, C] int64`, `scores: [B, C] float32` cumulative
    log-probabilities, `parents: [B, C] int64`: C = `shape.capacity` candidates level by level;
    a parent is 0 for the root, else 1 + the index of a candidate of the level above.

    Raises:
        ValueError: `implementation` is not one of `IMPLEMENTATIONS`.
    """
    _check(implementation)
    return _RUN[implementation](root_tokens, tokens, scores, parents, shape)


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
            f"tree_build: implementation={implementation!r} is unknown; use one of "
            + ", ".join(map(repr, IMPLEMENTATIONS))
        )
