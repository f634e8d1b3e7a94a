# SPDX-License-Identifier: Apache-2.0
"""Which nodes of drafted trees are worth verifying, and what verified ones teach."""

import torch

from vllm_eagle_pangu.kernels.implementations import Implementations
from vllm_eagle_pangu.kernels.tree_build.trees import Trees
from vllm_eagle_pangu.kernels.tree_prune.belief import Belief

__all__ = ["Belief", "prepare", "tally_paths", "tree_prune"]

# Torch ops on a GPU, too: no kernel of our own there yet.
_FORMS = {"reference": "reference", "cpp": "cpu_impl", "triton": "reference"}
_PRUNE = Implementations(__name__, "tree_prune", **_FORMS)
_TALLY = Implementations(__name__, "tally_paths", **_FORMS)
prepare = _PRUNE.prepare


def tree_prune(
    trees: Trees, belief: Belief, cost: torch.Tensor, implementation: str | None = None
) -> tuple[Trees, torch.Tensor]:
    """The nodes of all trees that are worth their cost, and every node's chance.

    A node's chance is that of its whole path, by `belief`: never more than its parent's. The N
    likeliest of all nodes are kept for the N at which the sum of their chances less `cost[N]` is
    largest (the least such N), and nodes as likely as the last of them. In each tree they come
    falling by chance, of equal ones the lower row first; the rest is padding.

    `cost: [n+1] float64`, at least as many as there are nodes and one: in tokens, by nodes kept.
    Returns trees of as many rows, and `[B, R] float64`, in the rows of `trees`: 1 at the root, 0 at
    padding.

    Raises:
        ValueError: `implementation` names none of the op's; None is the device's own.
    """
    return _PRUNE.of(implementation, trees.tokens.device)(trees, belief, cost)


def tally_paths(
    trees: Trees,
    rows: torch.Tensor,
    length: torch.Tensor,
    belief: Belief,
    memory: float,
    implementation: str | None = None,
) -> None:
    """Learn from verified trees: writes `belief`.

    The children of accepted rows were tried, and those that lie on the path accepted; what others
    would have met nobody knows. Each one tried leaves `memory` of what was seen before.

    `rows: [B, D+1] int64`, `length: [B] int64`: see `tree_accept.AcceptedPaths`.

    Raises:
        ValueError: `implementation` names none of the op's; None is the device's own.
    """
    _TALLY.of(implementation, trees.tokens.device)(trees, rows, length, belief, memory)
