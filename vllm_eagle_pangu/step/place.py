# SPDX-License-Identifier: Apache-2.0
"""Place: the scheduled trees' rows in the batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch

from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.core.tree import TreeBatch
from vllm_eagle_pangu.core.uploads import upload
from vllm_eagle_pangu.kernels.indices import index_range
from vllm_eagle_pangu.step.view import BatchView


@dataclass(frozen=True)
class PendingTree:
    """A request's tree between the step that drafted it and the one that verifies it.

    Row `row` of `batch`, drafted in `shape`; `nodes` of its rows are valid nodes, as the host
    knows since it handed their tokens to the scheduler.
    """

    batch: TreeBatch
    row: int
    nodes: int
    shape: TreeShape


@dataclass(frozen=True)
class ScheduledTree:
    """The first nodes of a pending tree, `tokens`, scheduled for request `request` of the batch."""

    request: int
    tokens: Sequence[int]
    pending: PendingTree

    @property
    def rows(self) -> int:
        """Root included."""
        return len(self.tokens) + 1


@dataclass(frozen=True)
class PlacedTrees:
    """T trees of R rows, of which S in all were scheduled; in the order of their requests.

    On the host, `[T]`: `scheduled`, and `nodes`, the valid ones among the scheduled rows.

    On the device:

    `tree`: cut to the scheduled rows.
    `requests`, `counts` (rows scheduled), `prefix_len`, `first_row` (in the batch): `[T] int64`.
    `tree_rows: [S] int64`: each scheduled row among the T*R, trees one after the other.
    `batch_rows: [S] int64`: the same rows in the batch.
    `node_rows: [S - T] int64`: the same without the roots.
    """

    scheduled: Sequence[ScheduledTree]
    nodes: Sequence[int]
    tree: TreeBatch
    requests: torch.Tensor
    counts: torch.Tensor
    prefix_len: torch.Tensor
    first_row: torch.Tensor
    tree_rows: torch.Tensor
    batch_rows: torch.Tensor
    node_rows: torch.Tensor

    @property
    def are_whole(self) -> bool:
        """Whether all rows of every tree are scheduled: what is of these is not selected then."""
        return len(self.tree_rows) == self.tree.tokens.numel()

    def of_scheduled(self, values: torch.Tensor) -> torch.Tensor:
        """`[T, R]` values of tree rows to `[S]`, those of the scheduled rows."""
        return values.flatten() if self.are_whole else values.flatten()[self.tree_rows]

    def positions(self) -> torch.Tensor:
        """`[S] int64`: rotary positions; nodes stand at their depth behind the prefix."""
        return self.of_scheduled(self.tree.positions(self.prefix_len))

    def slots_by_position(self, slots: torch.Tensor) -> torch.Tensor:
        """`[T, R] int64`: of a group's `slots: [N]`, that of position i behind the root."""
        if self.are_whole and len(slots) == len(self.batch_rows):
            return slots.view_as(self.tree.tokens)
        offsets = index_range(self.tree.rows, slots.device)
        return slots[(self.first_row[:, None] + offsets).clamp_(max=slots.shape[0] - 1)]

    def check(self) -> None:
        """Assert that the trees are trees, and of the scheduled tokens; syncs with the device.

        Raises:
            AssertionError: names the invariant that does not hold.
        """
        self.tree.check()
        for row, tree in enumerate(self.scheduled):
            drafted = self.tree.tokens[row, 1 : tree.rows].tolist()
            assert drafted == list(tree.tokens), "tree: the scheduled tokens are the drafted ones"


@dataclass(frozen=True)
class Placed:
    """The batch with its trees; `trees` is None where no request has one.

    `logit_counts: [B]` on the host: rows of logits per request; `first_logits: [B] int64`: the
    first of each.
    """

    view: BatchView
    trees: PlacedTrees | None
    logit_counts: Sequence[int]
    first_logits: torch.Tensor

    @property
    def covers_batch(self) -> bool:
        """Whether every request has a tree."""
        return self.trees is not None and len(self.trees.scheduled) == self.view.batch_size


def place(view: BatchView, scheduled: Sequence[ScheduledTree]) -> Placed:
    """Find each tree's rows; `scheduled` in the order of the batch. Waits for no device."""
    if not scheduled:
        first_logits = index_range(view.batch_size, view.device)
        return Placed(view, None, [1] * view.batch_size, first_logits)
    requests, counts = [tree.request for tree in scheduled], [tree.rows for tree in scheduled]
    logit_counts = [1] * view.batch_size
    for tree in scheduled:
        logit_counts[tree.request] = tree.rows
    first_rows = view.host_query_start[requests]
    width = max(tree.pending.batch.rows for tree in scheduled)
    row = np.concatenate([np.arange(count) for count in counts])
    batch_rows = np.repeat(first_rows, counts) + row
    on_device = upload(
        view.device,
        requests=requests,
        counts=counts,
        prefix_len=[view.requests[request].committed for request in requests],
        first_row=first_rows,
        tree_rows=np.repeat(np.arange(len(scheduled)) * width, counts) + row,
        batch_rows=batch_rows,
        node_rows=batch_rows[row > 0],
        first_logits=[0, *accumulate(logit_counts[:-1])],
    )
    first_logits = on_device.pop("first_logits")
    trees = PlacedTrees(
        scheduled=scheduled,
        nodes=[min(tree.pending.nodes, len(tree.tokens)) for tree in scheduled],
        tree=_stacked(scheduled, on_device["counts"]),
        **on_device,
    )
    return Placed(view, trees, logit_counts, first_logits)


def _stacked(scheduled: Sequence[ScheduledTree], counts: torch.Tensor) -> TreeBatch:
    """One TreeBatch of the pending trees, cut to `counts: [T]` rows each."""
    pending = [tree.pending for tree in scheduled]
    batch, rows = pending[0].batch, [tree.row for tree in pending]
    if any(tree.batch is not batch for tree in pending):
        batch = TreeBatch.stack([t.batch.select(slice(t.row, t.row + 1)) for t in pending])
    elif rows != list(range(batch.batch_size)):
        batch = batch.select(upload(counts.device, rows=rows)["rows"])
    if any(tree.pending.nodes > len(tree.tokens) for tree in scheduled):
        batch = batch.cut(counts - 1)
    return batch
