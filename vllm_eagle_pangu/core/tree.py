# SPDX-License-Identifier: Apache-2.0
"""A batch of draft trees as dense tensors."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import torch
from torch.nn.functional import pad

from vllm_eagle_pangu.core.uploads import tensor_to
from vllm_eagle_pangu.kernels.indices import index_range
from vllm_eagle_pangu.kernels.mask import ancestor_table, visible_rows
from vllm_eagle_pangu.kernels.tree_build import Trees

MASK = "tree: a row sees itself and its ancestors"
_TENSORS = [field.name for field in fields(Trees)]
# Those with one value per row.
_OF_ROWS = [name for name in _TENSORS if name != "visible"]


@dataclass(frozen=True)
class TreeBatch(Trees):
    """B trees of R rows, none deeper than `max_depth`: D."""

    max_depth: int

    @classmethod
    def of(cls, trees: Trees, max_depth: int) -> "TreeBatch":
        """The same trees, of which `max_depth` is known."""
        return cls(**vars(trees), max_depth=max_depth)

    @classmethod
    def stack(cls, trees: Sequence["TreeBatch"]) -> "TreeBatch":
        """One batch of all the trees, padded to the most rows; at least one tree."""
        assert trees
        rows = max(tree.rows for tree in trees)
        padded = [tree.padded(rows) for tree in trees]
        return cls(
            **{name: torch.cat([getattr(tree, name) for tree in padded]) for name in _TENSORS},
            max_depth=max(tree.max_depth for tree in trees),
        )

    @property
    def batch_size(self) -> int:
        """B."""
        return self.tokens.shape[0]

    @property
    def rows(self) -> int:
        """R."""
        return self.tokens.shape[1]

    @cached_property
    def node_count(self) -> torch.Tensor:
        """`[B] int64`: valid nodes, the root not counted."""
        return self.valid.sum(dim=1) - 1

    def positions(self, prefix_len: torch.Tensor) -> torch.Tensor:
        """`[B, R] int64`: rotary positions behind `prefix_len: [B]` committed tokens."""
        return prefix_len[:, None] + self.depth

    def select(self, rows: torch.Tensor | slice) -> "TreeBatch":
        """The trees of requests `rows`: `[B'] int64`, in that order, or a slice of them."""
        return replace(self, **{name: getattr(self, name)[rows] for name in _TENSORS})

    def copy_of(self, count: int) -> "TreeBatch":
        """The first `count` trees, in memory of their own."""
        return replace(self, **{name: getattr(self, name)[:count].clone() for name in _TENSORS})

    def to(self, device: torch.device) -> "TreeBatch":
        """The same trees there: waits for a device that they come from, not for one they go to."""
        if device == self.tokens.device:
            return self
        there = {name: tensor_to(getattr(self, name), device) for name in _TENSORS}
        return replace(self, **there)

    def cut(self, counts: torch.Tensor) -> "TreeBatch":
        """Keep the root and the first `counts[b]` nodes of each tree; the rest becomes padding.

        `counts: [B] int64`, at least 0; more than a tree has leaves it as it is.
        """
        valid = self.valid & (index_range(self.rows, self.valid.device) <= counts[:, None])
        visible = self.visible & valid[:, :, None]
        visible[:, :, 0] = True
        kept = {name: getattr(self, name).where(valid, 0) for name in ("tokens", "parent", "depth")}
        score = self.score.masked_fill(~valid, -torch.inf)
        return replace(self, **kept, valid=valid, visible=visible, score=score)

    def padded(self, rows: int) -> "TreeBatch":
        """The same trees with padding up to `rows` rows."""
        extra = rows - self.rows
        assert extra >= 0, (rows, self.rows)
        if extra == 0:
            return self
        visible = pad(self.visible, (0, extra, 0, extra))
        visible[:, self.rows :, 0] = True
        longer = {name: pad(getattr(self, name), (0, extra)) for name in _OF_ROWS}
        longer["score"][:, self.rows :] = -torch.inf
        return replace(self, **longer, visible=visible)

    def check(self) -> None:
        """Assert the invariants of the class; syncs with the device.

        Raises:
            AssertionError: names the invariant that does not hold.
        """
        for invariant, held in self.invariants().items():
            assert bool(held.all()), invariant

    def invariants(self) -> dict[str, torch.Tensor]:
        """By name, which rows keep the invariant: `[B, R] bool`. Any values are taken."""
        row = index_range(self.rows, self.parent.device)
        node = self.valid & (row > 0)
        is_row = (self.parent >= 0) & (self.parent < self.rows)
        parent = self.parent.where(is_row, row)
        linked = node & is_row
        # Upwards as far as it goes: who never comes to the root has no ancestors to be told.
        ancestors = ancestor_table(parent.masked_fill(row == 0, 0), self.rows - 1)
        ancestors = ancestors.where(self.valid[:, None], 0)
        endless = ancestors[:, -1] != 0
        return {
            "tree: the root is row 0, valid, its own parent, at depth 0": (
                (row > 0) | (self.valid & (self.parent == 0) & (self.depth == 0))
            ),
            "tree: parents are rows": is_row,
            "tree: no cycle: a node's parent comes before it": ~node | (self.parent < row),
            "tree: a node's parent is valid": ~linked | self.valid.gather(1, parent),
            "tree: a node is one deeper than its parent": (
                ~linked | (self.depth == self.depth.gather(1, parent) + 1)
            ),
            "tree: no node is deeper than max_depth": self.depth <= self.max_depth,
            "tree: padding comes after the nodes": (
                ~self.valid | pad(self.valid[:, :-1], (1, 0), value=True)
            ),
            "tree: padding has token, parent and depth 0": (
                self.valid | ((self.tokens == 0) & (self.parent == 0) & (self.depth == 0))
            ),
            "tree: exactly the padding scores -inf": self.valid == (self.score != -torch.inf),
            "tree: no score is NaN": ~self.score.isnan(),
            MASK: endless | (self.visible == visible_rows(ancestors, self.valid)).all(dim=2),
        }
