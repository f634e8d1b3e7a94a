# SPDX-License-Identifier: Apache-2.0
"""Grow: the next trees, level by level (EAGLE-2, section 4.1), or all levels at once (P-EAGLE)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch

from vllm_eagle_pangu.core.draft import TreeGrower
from vllm_eagle_pangu.core.ops import Ops
from vllm_eagle_pangu.core.policy import TreePolicy
from vllm_eagle_pangu.core.request import RequestView
from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.core.tree import TreeBatch
from vllm_eagle_pangu.kernels.indices import index_range, spans
from vllm_eagle_pangu.step.extend import Extended
from vllm_eagle_pangu.step.head import Head, Limits
from vllm_eagle_pangu.step.rows import ChainRows, LevelRows

# See `core.policy.TreePolicy.deepen`.
Deepen: TypeAlias = Callable[[int, torch.Tensor], bool]
# See `grow_shape`.
GrowShape: TypeAlias = Callable[[Extended, TreeShape, Deepen, Head, Limits, Ops], TreeBatch]


@dataclass(frozen=True)
class DraftedTrees:
    """`tree` row i was drafted for request `requests[i]` of the batch, in this shape."""

    tree: TreeBatch
    requests: Sequence[int]
    shape: TreeShape


@dataclass(frozen=True)
class Drafted:
    """The next trees, those of one shape together; a request is in one of them at most."""

    trees: Sequence[DraftedTrees] = ()

    def kept(self, policy: TreePolicy, views: Sequence[RequestView]) -> "Drafted":
        """Of these trees, for some of a batch's requests, what the policy has verified."""
        requests = [[views[request] for request in drafted.requests] for drafted in self.trees]
        kept = policy.keep([drafted.tree for drafted in self.trees], requests, len(views))
        pairs = zip(self.trees, kept, strict=True)
        return Drafted([replace(drafted, tree=tree) for drafted, tree in pairs])


def grow(
    extended: Extended,
    plan: Sequence[TreeShape],
    deepen: Deepen,
    head: Head,
    limits: Limits,
    ops: Ops,
    grow_one: GrowShape,
) -> Drafted:
    """A tree for each request, in its planned shape. Shapes take turns on the head, by `grow_one`:
    `grow_shape`, or what does the same."""
    places: dict[TreeShape, list[int]] = {}
    for place, shape in enumerate(plan):
        places.setdefault(shape, []).append(place)
    drafted = []
    for shape, those in places.items():
        some = extended.of(those)
        tree = grow_one(some, shape, deepen, head, limits, ops)
        drafted_shape = TreeShape(shape.width, tree.max_depth, tree.rows - 1)
        drafted.append(DraftedTrees(tree, some.requests, drafted_shape))
    return Drafted(drafted)


def grow_shape(
    extended: Extended, shape: TreeShape, deepen: Deepen, head: Head, limits: Limits, ops: Ops
) -> TreeBatch:
    """Trees of one shape for all of `extended`: as the head drafts, `level_by_level` or `at_once`.

    They end where `deepen` says no.
    """
    way = at_once if head.parallel else level_by_level
    return way(extended, shape, deepen, head, limits, ops)


def level_by_level(
    extended: Extended, shape: TreeShape, deepen: Deepen, head: Head, limits: Limits, ops: Ops
) -> TreeBatch:
    """In D passes: the extension's, and one a level, in which each node has children of its own."""
    batch, width = len(extended.requests), shape.width
    prefix = extended.prefix_len.int()
    prefix_start = limits.prefix_start(extended.prefix_len, extended.read_from)
    query_start, query_count = spans(batch, width, width, prefix.device)
    positions = extended.prefix_len.repeat_interleave(width)
    grower = TreeGrower(shape, ops)
    frontier = grower.grow(*head.children(extended.last, width))
    hidden = extended.state.repeat_interleave(width, 0)
    for level in range(shape.depth - 1):
        if not deepen(level + 1, frontier.score):
            break
        key_start, key_count = spans(batch, (level + 1) * width, limits.scratch_rows, prefix.device)
        rows = LevelRows(
            block_table=extended.block_table,
            prefix_len=prefix,
            query_start=query_start,
            query_count=query_count,
            key_start=key_start,
            key_count=key_count,
            visible=frontier.visible,
            covers_batch=True,
            prefix_start=prefix_start,
            level=level,
            width=width,
            scratch_rows=limits.scratch_rows,
        )
        last, state = head.level(frontier.tokens.reshape(-1), positions + level, hidden, rows)
        scores, tokens = head.children(last, width)
        frontier = grower.grow(scores.view(batch, width, width), tokens.view(batch, width, width))
        if level < shape.depth - 2:
            state = state.view(batch, width, -1)
            hidden = torch.take_along_dim(state, frontier.parent[..., None], 1).flatten(0, 1)
    return grower.finish(extended.root_tokens)


def at_once(
    extended: Extended, shape: TreeShape, deepen: Deepen, head: Head, limits: Limits, ops: Ops
) -> TreeBatch:
    """In two passes: the extension's, and one over D - 1 masked rows behind each root, which say
    what comes so far behind it whatever comes before: all nodes of a level have the same children.

    Source: P-EAGLE; vllm/v1/spec_decode/llm_base_proposer.py, `parallel_drafting`.
    """
    batch, width, masked = len(extended.requests), shape.width, shape.depth - 1
    grower = TreeGrower(shape, ops)
    frontier = grower.grow(*head.children(extended.last, width))
    if not masked:
        return grower.finish(extended.root_tokens)
    device = extended.last.device
    start, _ = spans(batch, masked, masked, device)
    prefix_start = limits.prefix_start(extended.prefix_len, extended.read_from)
    rows = ChainRows.of(extended.block_table, extended.prefix_len, start, masked, prefix_start)
    positions = extended.prefix_len[:, None] + index_range(masked, device)
    tokens, hidden = head.masked(batch * masked)
    last, _ = head.level(tokens, positions.flatten(), hidden, rows)
    scores, tokens = (of_rows.view(batch, masked, width) for of_rows in head.children(last, width))
    # By level below the first one, `[B, W, W]`: each node's children.
    scores, tokens = (
        of_levels.transpose(0, 1)[:, :, None].expand(-1, -1, width, -1).contiguous()
        for of_levels in (scores, tokens)
    )
    for level, children in enumerate(zip(scores, tokens, strict=True)):
        if not deepen(level + 1, frontier.score):
            break
        frontier = grower.grow(*children)
    return grower.finish(extended.root_tokens)
