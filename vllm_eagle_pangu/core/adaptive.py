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

# Nodes by chance, of which what trees would bring is remembered: 32 bins from 1 down to 1/256.
CHANCES = 2.0 ** -(np.arange(32) / 4)
# What one request's tree weighs in what is remembered.
WEIGHT = 0.05
# Whether trees pay is asked anew after so many steps, and where the batch changed.
REASSESSED = 8
# Trees have all levels once in so many steps; where none pay, one is drafted less and less often.
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
        # By requests: of drafting a level, of reading before it what they emitted; and of the rest
        # of a step by its batch.
        self.level, self.reading, self.rest = Durations(), Durations(), Durations()
        # Of a request: nodes by chance, `[bins]`, and levels of late; None before the first trees.
        self.nodes: np.ndarray | None = None
        self.depth = float(largest.depth)
        # `[D]`: below level d + 1, the sum of its nodes' chances as the head has them, and of the
        # chances of the level drafted below; what their ratio was before the first.
        self._above, self._below = np.full(largest.depth, 1.0), np.full(largest.depth, 0.7)
        self._mass = np.zeros(largest.depth)
        # Seconds that a row adds to the forward.
        self._row = 0.0
        # Of the step being planned: its trees, their levels, whether those are all, and what a
        # second of it brings.
        self._drafted, self._levels = 0, largest.depth
        self._whole = True
        self._rate = 0.0
        self._batch = 0
        self._pays = True
        self._plans = self._since_trees = 0
        self._patience = LOOK_AGAIN[0]

    def plan(self, requests: Sequence[RequestView]) -> Sequence[TreeShape | None]:
        """See `TreePolicy`: trees for all, or none; one alone, to look again."""
        batch = len(requests)
        self._plans += 1
        if self.nodes is not None and (batch != self._batch or self._plans % REASSESSED == 0):
            plain = batch / float(self._seconds(batch, 0, 0, np.zeros(1))[0])
            if batch != self._batch:
                self._rate = plain
            self._pays = self._expected(batch) > plain
            few, many = self.forward.at(np.array([batch, batch * (1 + self.largest.nodes)]))
            self._row = (many - few) / (batch * self.largest.nodes)
        self._batch = batch
        self._whole = self._plans % LOOK_DEEPER == 0
        if self._pays:
            self._since_trees, self._patience = 0, LOOK_AGAIN[0]
            self._drafted = batch
            return [self.largest] * batch
        shapes: list[TreeShape | None] = [None] * batch
        self._since_trees += 1
        self._drafted = 0
        if self._since_trees >= self._patience:
            self._since_trees, self._patience = 0, min(2 * self._patience, LOOK_AGAIN[1])
            self._drafted, self._whole = 1, True
            shapes[self._plans % batch] = self.largest
        return shapes

    def deepen(self, level: int, score: torch.Tensor) -> bool:
        """See `TreePolicy`: whether the next level brings more than its time is worth elsewhere."""
        chance = score.exp().numpy()
        self._mass[level - 1] = chance.sum()
        if self._whole:
            return True
        # One child of each node, whose row takes its time in the next forward, too.
        child = chance * (self._below[level - 1] / self._above[level - 1])
        worth = (child - self._rate * self._row).clip(min=0.0)
        return bool(worth.sum() > self._rate * self.level.at(score.shape[0])[0])

    def keep(self, trees: Sequence[TreeBatch], batch: int) -> Sequence[TreeBatch]:
        """See `TreePolicy`: the nodes that pay, the likeliest first in each tree."""
        if not trees:
            return trees
        chances = [self.acceptance.of_paths(tree) for tree in trees]
        for tree, chance in zip(trees, chances, strict=True):
            self._remember(tree, chance)
        every = np.concatenate([chance[:, 1:].ravel() for chance in chances])
        every = -np.sort(-every[every > 0])
        depth = trees[0].max_depth
        seconds = self._seconds(batch, self._drafted, depth, np.arange(len(every) + 1))
        count = best_count(every, batch, seconds)
        self._rate = (batch + every[:count].sum()) / seconds[count]
        if count == len(every):
            return trees
        least = every[count - 1] if count else np.inf
        return [_likeliest(t, chance, least) for t, chance in zip(trees, chances, strict=True)]

    def observe(self, report: StepReport) -> None:
        """See `TreePolicy`."""
        if report.tree is not None and report.paths is not None:
            self.acceptance.observe(report.tree, report.paths)
        seconds = dict(report.seconds)
        forward = seconds.pop("verify", 0.0) + seconds.pop("draw", 0.0)
        self.forward.add(report.rows, forward)
        # Time between two steps is the scheduler's; if it is long, nobody asked for anything.
        seconds["between"] = min(seconds.get("between", 0.0), forward)
        if self._drafted and "grow" in seconds:
            self.level.add(self._drafted, seconds.pop("grow") / self._levels)
            reading = seconds.pop("extend")
            # One request alone also reads what it had put off.
            if self._drafted == report.batch:
                self.reading.add(report.batch, reading)
        self.rest.add(report.batch, sum(seconds.values()))

    def _expected(self, batch: int) -> float:
        """Tokens per second with trees, which are worth what they were lately."""
        assert self.nodes is not None
        nodes = batch * self.nodes
        emitted = batch + np.concatenate(([0.0], (nodes * CHANCES).cumsum()))
        verified = np.concatenate(([0.0], nodes.cumsum()))
        return float((emitted / self._seconds(batch, batch, self.depth, verified)).max())

    def _seconds(self, batch: int, drafted: int, depth: float, nodes: np.ndarray) -> np.ndarray:
        """Of steps that draft so deep for `drafted` requests and verify `nodes` beside roots."""
        fixed = self.rest.at(batch)[0]
        if drafted:
            fixed += depth * self.level.at(drafted)[0] + self.reading.at(drafted)[0]
        # Nothing is known before the first step.
        return np.maximum(self.forward.at(batch + nodes) + fixed, 1e-9)

    def _remember(self, tree: TreeBatch, chance: np.ndarray) -> None:
        level, valid = tree.depth.numpy(), chance > 0
        valid[:, 0] = False
        self._levels = tree.max_depth
        bins = np.clip(np.rint(-4 * np.log2(chance[valid])).astype(int), 0, len(CHANCES) - 1)
        found = np.bincount(bins, minlength=len(CHANCES)) / tree.batch_size
        leaves = (1 - WEIGHT) ** tree.batch_size
        if self.nodes is None:
            self.nodes = found
        else:
            self.nodes = leaves * self.nodes + (1 - leaves) * found
            self.depth = leaves * self.depth + (1 - leaves) * tree.max_depth
        below = np.bincount(level[valid], chance[valid], minlength=tree.max_depth + 1)[2:]
        deeper = slice(0, len(below))
        self._above[deeper] = leaves * self._above[deeper] + self._mass[deeper]
        self._below[deeper] = leaves * self._below[deeper] + below


def _likeliest(tree: TreeBatch, chance: np.ndarray, least: float) -> TreeBatch:
    """The nodes of a chance of `least` or more, falling; of equal ones parents first."""
    order = np.argsort(-chance, axis=1, kind="stable")
    counts = torch.from_numpy((chance[:, 1:] >= least).sum(axis=1))
    return tree.ordered(torch.from_numpy(order)).cut(counts)
