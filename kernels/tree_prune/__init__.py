# SPDX-License-Identifier: Apache-2.0
"""Which nodes of drafted trees are worth verifying, and what verified ones teach."""

from vllm_eagle_pangu.kernels.implementations import Op
from vllm_eagle_pangu.kernels.tree_prune import reference
from vllm_eagle_pangu.kernels.tree_prune.reference import Belief

__all__ = ["Belief", "tally_paths", "tree_prune"]

tree_prune = Op(reference.tree_prune)
tally_paths = Op(reference.tally_paths)
