# SPDX-License-Identifier: Apache-2.0
"""One level of tree growth (EAGLE-2, section 4.1: expansion)."""

from vllm_eagle_pangu.kernels.implementations import Op
from vllm_eagle_pangu.kernels.tree_expand import reference
from vllm_eagle_pangu.kernels.tree_expand.frontier import Candidates, Frontier

__all__ = ["Candidates", "Frontier", "tree_expand"]

tree_expand = Op(reference.tree_expand)
