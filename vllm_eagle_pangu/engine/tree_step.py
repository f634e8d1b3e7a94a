# SPDX-License-Identifier: Apache-2.0
"""The trees that one target forward verifies, and where their rows lie in vLLM's flat batch."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from vllm_eagle_pangu.core.paths import AcceptedPaths
from vllm_eagle_pangu.core.tree import TreeBatch
from vllm_eagle_pangu.engine.sampling import TreeLinks


@dataclass(frozen=True)
class StoredTree:
    """A request's tree between the step that drafted it and the step that verifies it."""

    batch: TreeBatch
    row: int


@dataclass
class TreeStep:
    """T trees inside a batch of B requests and N token rows.

    `tree` has T rows; `counts: [T]` says how many of its R rows were scheduled (root included).
    """

    # [T] index of each tree's request in the batch
    requests: torch.Tensor
    tree: TreeBatch
    counts: torch.Tensor
    # [T] first row of each tree in the batch, and the t committed tokens before its root
    first_row: torch.Tensor
    prefix_len: torch.Tensor
    # [T] first row of each tree among the logits
    first_logit: torch.Tensor
    # [B] rows of logits per request
    logit_counts: list[int]
    # [T, R] whether a row exists, [S] batch row of each existing row in (tree, row) order
    exists: torch.Tensor
    batch_rows: torch.Tensor
    covers_batch: bool
    # [N] positions and, per KV cache group, slots as vLLM laid them out: one after the other
    linear_positions: torch.Tensor
    linear_slots: dict[int, torch.Tensor]
    paths: AcceptedPaths | None = None

    @property
    def whole_batch_rows(self) -> torch.Tensor | None:
        """`batch_rows`, or None when the tree rows are simply all rows of the batch."""
        return None if self.covers_batch else self.batch_rows

    def node_rows(self) -> torch.Tensor:
        """Batch rows of nodes, roots left out; `[S - T]`."""
        is_node = self.exists.clone()
        is_node[:, 0] = False
        return self.batch_rows[is_node[self.exists]]

    def slots_by_position(self, group: int) -> torch.Tensor:
        """`[T, R]`: the slot of the position i behind the root, for i in [0, R)."""
        slots = self.linear_slots[group]
        offsets = torch.arange(self.tree.tokens.shape[1])
        return slots[(self.first_row[:, None] + offsets).clamp_(max=slots.shape[0] - 1)]

    def links(self) -> dict[int, TreeLinks]:
        """By request of the batch, its tree's scheduled rows on the host; syncs off the CPU."""
        rows = zip(self.tree.tokens.tolist(), self.tree.parent.tolist(), strict=True)
        scheduled = zip(self.requests.tolist(), self.counts.tolist(), rows, strict=True)
        return {
            request: TreeLinks(tokens[:count], parent[:count])
            for request, count, (tokens, parent) in scheduled
        }

    def logit_rows(self) -> torch.Tensor:
        """`[T, R]`: the logits row of each tree row; rows that do not exist give the root's."""
        offsets = torch.arange(self.tree.tokens.shape[1])
        return self.first_logit[:, None] + offsets * self.exists


def lay_out(
    trees: Sequence[StoredTree],
    # per tree: index of its request, rows scheduled, first batch row, committed tokens
    requests: Sequence[int],
    counts: Sequence[int],
    first_rows: Sequence[int],
    prefix_lens: Sequence[int],
    # per request of the batch: rows of logits
    logit_counts: list[int],
    linear_positions: torch.Tensor,
    linear_slots: dict[int, torch.Tensor],
) -> TreeStep:
    """Place the scheduled prefix of each tree in the batch."""
    count = torch.tensor(counts)
    first_row = torch.tensor(first_rows)
    tree = _stack(trees, count)
    exists = torch.arange(tree.tokens.shape[1]) < count[:, None]
    batch_rows = (first_row[:, None] + torch.arange(tree.tokens.shape[1]))[exists]
    starts = [0]
    for rows in logit_counts:
        starts.append(starts[-1] + rows)
    return TreeStep(
        requests=torch.tensor(requests),
        tree=tree,
        counts=count,
        first_row=first_row,
        prefix_len=torch.tensor(prefix_lens),
        first_logit=torch.tensor([starts[request] for request in requests]),
        logit_counts=logit_counts,
        exists=exists,
        batch_rows=batch_rows,
        covers_batch=len(requests) == len(logit_counts),
        linear_positions=linear_positions,
        linear_slots=linear_slots,
    )


def _stack(trees: Sequence[StoredTree], counts: torch.Tensor) -> TreeBatch:
    """One TreeBatch of the given trees, cut to `counts` rows each."""
    batches = {id(tree.batch): tree.batch for tree in trees}
    if len(batches) == 1:
        batch = trees[0].batch
        rows = [tree.row for tree in trees]
        if rows != list(range(batch.tokens.shape[0])):
            batch = batch.select(torch.tensor(rows))
    else:
        batch = TreeBatch.stack([tree.batch.select(torch.tensor([tree.row])) for tree in trees])
    nodes = counts - 1
    if bool((batch.valid.sum(1) - 1 > nodes).any()):
        batch = batch.cut(nodes)
    return batch
