# SPDX-License-Identifier: Apache-2.0
"""The best children of drafted rows: logits to log-probabilities and target tokens."""

from vllm_eagle_pangu.kernels.implementations import Op
from vllm_eagle_pangu.kernels.top_children import reference

__all__ = ["top_children"]

top_children = Op(reference.top_children)
