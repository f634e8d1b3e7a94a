# SPDX-License-Identifier: Apache-2.0
"""Trees and target draws to accepted paths."""

from vllm_eagle_pangu.kernels.implementations import Op
from vllm_eagle_pangu.kernels.tree_accept import reference
from vllm_eagle_pangu.kernels.tree_accept.reference import AcceptedPaths

__all__ = ["AcceptedPaths", "tree_accept"]

tree_accept = Op(reference.tree_accept)
