# SPDX-License-Identifier: Apache-2.0
"""Which tree to draft in a step."""

from dataclasses import dataclass
from typing import Protocol

from vllm_eagle_pangu.core.shape import TreeShape, chain_shape

__all__ = ["FixedShapePolicy", "TreePolicy", "chain_shape"]


class TreePolicy(Protocol):
    """Chooses the shape of all trees of a step."""

    def shape(self, batch_size: int) -> TreeShape:
        """Shape for a step that drafts for `batch_size` requests."""
        ...


@dataclass(frozen=True)
class FixedShapePolicy:
    """The same shape in every step."""

    tree: TreeShape

    def shape(self, batch_size: int) -> TreeShape:
        """See `TreePolicy.shape`."""
        del batch_size
        return self.tree
