# SPDX-License-Identifier: Apache-2.0
"""The fastest step for the whole batch: how deep to draft, and which nodes are worth verifying.

A node is worth the chance that its path is accepted. Along a path that never rises, so the best N
nodes of all trees together are the N likeliest ones, and with every node go its ancestors. Source:
Yggdrasil's latency-aware objective, here for a batch of requests.
"""

from collections.abc import Sequence

import numpy as np
import torch

from vllm_eagle_pangu.core.acceptance import Acceptance
from vllm_eagle_pangu.core.durations import Durations
from vllm_eagle_pangu.core.policy import StepReport
from vllm_eagle_pangu.core.request import RequestView
from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.core.tree import TreeBatch

# Nodes by chance, of which what a depth would bring is remembered: 32 bins from 1 down to 1/256.
CHANCES = 2.0 ** -(np.arange(32) / 4)
# What one request's tree weighs in what is remembered.
WEIGHT = 0.05
# The depth is chosen anew after so many steps, and where the batch changed.
REASSESSED = 8
# Drafted to the full depth once in so many steps; without trees less and less often.
LOOK_DEEPER = 32
LOOK_AGAIN = (16, 256)


def best_count(chances: np.ndarray, batch: int, seconds: np.ndarray) -> int:
    """How many of the likeliest nodes to verify.

    `chances: [n]`, falling; `seconds: [n+1]`: of a step that verifies so many nodes. The largest of
    (tokens emitted) / (seconds), where each of `batch` requests emits one token beside its nodes.
    """
    emitted = batch + np.concatenate(([0.0], chances.cumsum()))
    return int(np.argmax(emitted / seconds))


class AdaptiveShapes:
    """A `TreePolicy`: up to `largest`, as deep and as many nodes as pay, or no tree.

    `forward`: seconds by rows of the target's forward with its logits and draws, which whoever owns
    the engine may fill before the first step. For stages that are measured where they run: on the
    host.
    """

    def __init__(self, largest: TreeShape) -> None:
        self.largest = largest
        self.acceptance = Acceptance(largest.depth)
        self.forward = Durations()
        # By depth, of drafting for so many requests; and of the rest of a step.
        self.drafting = [Durations() for _ in range(largest.depth + 1)]
        self.rest = Durations()
        # `[D, bins]`: nodes of a request by level and chance; None before the first trees.
        self.nodes: np.ndarray | None = None
        self._drafted = (0, 0)
        self._best = (0, 0)
        self._plans = 0
        self._since_full = 0
        self._patience = LOOK_AGAIN[0]

    def plan(self, requests: Sequence[RequestView]) -> Sequence[TreeShape | None]:
        """See `TreePolicy`: trees of one depth for all, or none."""
        depth = self._depth(len(requests))
        self._drafted = (depth, len(requests))
        return [self._shape(depth)] * len(requests)

    def keep(self, trees: Sequence[TreeBatch], batch: int) -> Sequence[TreeBatch]:
        """See `TreePolicy`: the nodes that pay, the likeliest first in each tree."""
        if not trees:
            return trees
        chances = [self.acceptance.of_paths(tree) for tree in trees]
        for tree, chance in zip(trees, chances, strict=True):
            self._remember(tree, chance)
        every = np.concatenate([chance[:, 1:].ravel() for chance in chances])
        every = -np.sort(-every[every > 0])
        nodes = np.arange(len(every) + 1)
        count = best_count(every, batch, self._seconds(*self._drafted, batch, nodes))
        least = every[count - 1] if count else np.inf
        return [_likeliest(t, chance, least) for t, chance in zip(trees, chances, strict=True)]

    def observe(self, report: StepReport) -> None:
        """See `TreePolicy`."""
        if report.tree is not None and report.paths is not None:
            self.acceptance.observe(report.tree, report.paths)
        seconds = dict(report.seconds)
        # Time between two steps is the scheduler's, or nobody asked for anything.
        seconds.pop("between", None)
        grow = seconds.pop("grow", None)
        self.forward.add(report.rows, seconds.pop("verify", 0.0) + seconds.pop("draw", 0.0))
        depth, requests = self._drafted
        if depth and grow is not None:
            self.drafting[depth].add(requests, grow)
        self.rest.add(report.batch, sum(seconds.values()))

    def _shape(self, depth: int) -> TreeShape | None:
        if depth == 0:
            return None
        width, nodes = self.largest.width, self.largest.nodes
        return TreeShape(width, depth, min(nodes, TreeShape(width, depth, 1).capacity))

    def _depth(self, batch: int) -> int:
        """How deep to draft, by what trees were worth lately; 0 for not at all."""
        full = self.largest.depth
        self._since_full += 1
        self._plans += 1
        if self.nodes is None:
            return full
        if batch != self._best[0] or self._plans % REASSESSED == 0:
            depths = range(full + 1)
            self._best = batch, max(depths, key=lambda depth: self._expected(depth, batch))
        best = self._best[1]
        if self._since_full >= (LOOK_DEEPER if best else self._patience):
            self._patience = LOOK_AGAIN[0] if best else min(2 * self._patience, LOOK_AGAIN[1])
            best = full
        if best == full:
            self._since_full = 0
        return best

    def _expected(self, depth: int, batch: int) -> float:
        """Tokens per second with trees of `depth`, which are worth what they were lately."""
        assert self.nodes is not None
        nodes = batch * self.nodes[:depth].sum(axis=0)
        emitted = batch + np.concatenate(([0.0], (nodes * CHANCES).cumsum()))
        verified = np.concatenate(([0.0], nodes.cumsum()))
        return float((emitted / self._seconds(depth, batch, batch, verified)).max())

    def _seconds(self, depth: int, drafted: int, batch: int, nodes: np.ndarray) -> np.ndarray:
        """Of steps that draft so deep for `drafted` requests and verify `nodes` beside roots."""
        verify = self.forward.at(batch + nodes)
        fixed = self.rest.at(batch)[0] + self._drafting(depth, drafted)
        # Nothing is known before the first step.
        return np.maximum(verify + fixed, 1e-9)

    def _drafting(self, depth: int, requests: int) -> float:
        if depth == 0:
            return 0.0
        known = [d for d in range(1, len(self.drafting)) if self.drafting[d]]
        if not known:
            return 0.0
        # A level is a pass.
        near = min(known, key=lambda d: abs(d - depth))
        return float(self.drafting[near].at(requests)[0]) * depth / near

    def _remember(self, tree: TreeBatch, chance: np.ndarray) -> None:
        depth = self.largest.depth
        found = np.zeros((depth, len(CHANCES)))
        level, valid = tree.depth.numpy(), chance > 0
        valid[:, 0] = False
        bins = np.clip(np.rint(-4 * np.log2(chance[valid])).astype(int), 0, len(CHANCES) - 1)
        np.add.at(found, (level[valid] - 1, bins), 1 / tree.batch_size)
        if self.nodes is None:
            self.nodes = found
            return
        leaves = (1 - WEIGHT) ** tree.batch_size
        levels = slice(0, tree.max_depth)
        self.nodes[levels] = leaves * self.nodes[levels] + (1 - leaves) * found[levels]


def _likeliest(tree: TreeBatch, chance: np.ndarray, least: float) -> TreeBatch:
    """The nodes of a chance of `least` or more, falling; of equal ones parents first."""
    order = np.argsort(-chance, axis=1, kind="stable")
    counts = torch.from_numpy((chance[:, 1:] >= least).sum(axis=1))
    return tree.ordered(torch.from_numpy(order)).cut(counts)
