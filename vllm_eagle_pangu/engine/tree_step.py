# SPDX-License-Identifier: Apache-2.0
"""The trees that one target forward verifies, and where their rows lie in vLLM's flat batch."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import torch

from vllm_eagle_pangu.core.indices import index_range
from vllm_eagle_pangu.core.paths import AcceptedPaths
from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.core.tree import TreeBatch
from vllm_eagle_pangu.engine.sampling import TreeLinks
from vllm_eagle_pangu.engine.uploads import upload

# What the scheduler sends in place of a drafted token that is none.
NO_DRAFT = -1


@dataclass(frozen=True)
class StoredTree:
    """A request's tree between the step that drafted it and the step that verifies it."""

    batch: TreeBatch
    row: int
    # Valid nodes, known on the host since they were handed to the scheduler.
    nodes: int
    # What the policy asked for.
    shape: TreeShape

    @classmethod
    def bare_root(
        cls, token: int, rows: int, shape: TreeShape, device: torch.device
    ) -> "StoredTree":
        """A root without nodes in a tree of `rows` rows, for a request that nobody drafted for."""
        tokens = torch.zeros(1, rows, dtype=torch.long, device=device)
        valid = torch.zeros(1, rows, dtype=torch.bool, device=device)
        tokens[:, 0], valid[:, 0] = token, True
        tree = TreeBatch.from_parents(tokens, torch.zeros_like(tokens), shape.depth, valid)
        return cls(tree, 0, 0, shape)


@dataclass
class TreeStep:
    """T trees inside a batch of B requests and N token rows; S tree rows were scheduled.

    What the host knows is kept there too, so that nobody has to ask the device for it.
    """

    # Per tree: index of its request in the batch, rows scheduled (root included), valid nodes of
    # them, committed tokens
    host_requests: Sequence[int]
    host_counts: Sequence[int]
    host_nodes: Sequence[int]
    host_prefix_lens: Sequence[int]
    shapes: Sequence[TreeShape]
    # [T] the same on the device
    requests: torch.Tensor
    counts: torch.Tensor
    prefix_len: torch.Tensor
    # T trees of R rows, of which `counts` were scheduled
    tree: TreeBatch
    # [T] first row of each tree in the batch
    first_row: torch.Tensor
    # Rows of logits per request; [B] the first of each
    logit_counts: list[int]
    first_logits: torch.Tensor
    # [S] in (tree, row) order: index of each scheduled row among T*R, and its row in the batch
    tree_rows: torch.Tensor
    batch_rows: torch.Tensor
    # [S - T] batch rows of the nodes, roots left out
    node_rows: torch.Tensor
    covers_batch: bool
    # [N] positions and, per KV cache group, slots as vLLM laid them out: one after the other
    linear_positions: torch.Tensor
    linear_slots: dict[int, torch.Tensor]
    # [T, R] the target's draws, then what was accepted and, per group, the slots committed to
    draws: torch.Tensor | None = None
    paths: AcceptedPaths | None = None
    commit_slots: dict[int, torch.Tensor] = field(default_factory=dict)

    def scheduled(self, values: torch.Tensor) -> torch.Tensor:
        """`[T, R]` values of tree rows to `[S]`, those of the scheduled rows."""
        return values.flatten()[self.tree_rows]

    def slots_by_position(self, group: int) -> torch.Tensor:
        """`[T, R]`: the slot of the position i behind the root, for i in [0, R)."""
        slots = self.linear_slots[group]
        offsets = index_range(self.tree.rows, slots.device)
        return slots[(self.first_row[:, None] + offsets).clamp_(max=slots.shape[0] - 1)]

    def links(self) -> dict[int, TreeLinks]:
        """By request of the batch, its tree's valid rows on the host; syncs off the CPU."""
        rows = zip(self.tree.tokens.tolist(), self.tree.parent.tolist(), strict=True)
        valid = zip(self.host_requests, self.host_nodes, rows, strict=True)
        return {
            request: TreeLinks(tokens[: nodes + 1], parent[: nodes + 1])
            for request, nodes, (tokens, parent) in valid
        }

    def logit_rows(self) -> torch.Tensor:
        """`[T, R]`: the logits row of each tree row; rows that do not exist give the root's."""
        offsets = index_range(self.tree.rows, self.counts.device)
        exists = offsets < self.counts[:, None]
        return self.first_logits[self.requests, None] + offsets * exists


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
    """Place the scheduled prefix of each tree in the batch; waits for no device."""
    device = linear_positions.device
    row_count = max(tree.batch.rows for tree in trees)
    row = np.concatenate([np.arange(count) for count in counts])
    tree_rows = np.repeat(np.arange(len(trees)) * row_count, counts) + row
    batch_rows = np.repeat(first_rows, counts) + row
    on_device = upload(
        device,
        requests=requests,
        counts=counts,
        first_row=first_rows,
        prefix_len=prefix_lens,
        tree_rows=tree_rows,
        batch_rows=batch_rows,
        node_rows=batch_rows[row > 0],
        first_logits=[0, *accumulate(logit_counts[:-1])],
    )
    return TreeStep(
        host_requests=requests,
        host_counts=counts,
        host_nodes=[min(t.nodes, n - 1) for t, n in zip(trees, counts, strict=True)],
        host_prefix_lens=prefix_lens,
        shapes=[tree.shape for tree in trees],
        tree=_stack(trees, counts, on_device["counts"]),
        logit_counts=logit_counts,
        covers_batch=len(requests) == len(logit_counts),
        linear_positions=linear_positions,
        linear_slots=linear_slots,
        **on_device,
    )


def _stack(
    trees: Sequence[StoredTree], counts: Sequence[int], device_counts: torch.Tensor
) -> TreeBatch:
    """One TreeBatch of the given trees, cut to `counts` rows each."""
    batch = trees[0].batch
    rows = [tree.row for tree in trees]
    if any(tree.batch is not batch for tree in trees):
        batch = TreeBatch.stack([t.batch.select(slice(t.row, t.row + 1)) for t in trees])
    elif rows != list(range(batch.batch_size)):
        batch = batch.select(upload(device_counts.device, rows=rows)["rows"])
    if any(tree.nodes > count - 1 for tree, count in zip(trees, counts, strict=True)):
        batch = batch.cut(device_counts - 1)
    return batch
