# SPDX-License-Identifier: Apache-2.0
"""Draft candidates to trees."""

from vllm_eagle_pangu.kernels.tree_build.reference import tree_build

__all__ = ["tree_build"]
