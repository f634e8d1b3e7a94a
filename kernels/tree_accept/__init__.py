# SPDX-License-Identifier: Apache-2.0
"""Trees and target draws to accepted paths."""

from collections.abc import Callable

import torch

from vllm_eagle_pangu.core.paths import AcceptedPaths
from vllm_eagle_pangu.core.tree import TreeBatch
from vllm_eagle_pangu.kernels.tree_accept.cpu_impl import compile_entry, cpu_tree_accept
from vllm_eagle_pangu.kernels.tree_accept.reference import tree_accept as tree_accept_reference

__all__ = ["IMPLEMENTATIONS", "prepare", "tree_accept"]

IMPLEMENTATIONS = ("reference", "cpp")


def tree_accept(
    tree: TreeBatch, draws: torch.Tensor, depth: int, implementation: str = "reference"
) -> AcceptedPaths:
    """Walk each tree from its root along the target's draws, at most `depth` nodes.

    Where the draw at a row is the token of one of its valid children (the lowest row, if several
    carry it), that child is accepted; otherwise the draw is the bonus token and the walk ends.

    `draws: [B, R] int64`: one target token per row; at padding rows anything.

    Raises:
        ValueError: `implementation` is not one of `IMPLEMENTATIONS`.
    """
    return _implementation(implementation)(tree, draws, depth)


def prepare(implementation: str) -> None:
    """Make an implementation ready to run, compiling it where needed: at start-up, not mid-request.

    Raises:
        ValueError: `implementation` is not one of `IMPLEMENTATIONS`.
        RuntimeError: it cannot run on this machine; the message says why and what to do.
    """
    if _implementation(implementation) is cpu_tree_accept:
        compile_entry()


def _implementation(name: str) -> Callable[..., AcceptedPaths]:
    if name == "reference":
        return tree_accept_reference
    if name == "cpp":
        return cpu_tree_accept
    raise ValueError(
        f"tree_accept: implementation={name!r} is unknown; use one of "
        + ", ".join(map(repr, IMPLEMENTATIONS))
    )
