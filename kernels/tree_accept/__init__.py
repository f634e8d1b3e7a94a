# SPDX-License-Identifier: Apache-2.0
"""Trees and target draws to accepted paths."""

from vllm_eagle_pangu.kernels.tree_accept.reference import tree_accept

__all__ = ["tree_accept"]
