# SPDX-License-Identifier: Apache-2.0
"""Draft candidates to trees."""

from vllm_eagle_pangu.kernels.implementations import Op
from vllm_eagle_pangu.kernels.tree_build import reference
from vllm_eagle_pangu.kernels.tree_build.reference import Trees

__all__ = ["Trees", "tree_build"]

tree_build = Op(reference.tree_build)
