# SPDX-License-Identifier: Apache-2.0
"""The fastest step for the whole batch: how deep to draft, and which nodes are worth verifying.

A node is worth the chance that its path is accepted. Along a path that never rises, so the best N
nodes of all trees together are the N likeliest ones, and with every node go its ancestors. A second
is worth the tokens that steps brought in one of late: taking whatever brings more than its time is
worth gives the most tokens per second in the long run (Dinkelbach), more nodes in a step that
promises much than in one that does not. Source: Yggdrasil's latency-aware objective, here for a
batch of requests, and over steps.
"""

from collections.abc import Sequence
from math import exp

import numpy as np
import torch

from vllm_eagle_pangu.core.costs import StepCosts
from vllm_eagle_pangu.core.ops import Ops
from vllm_eagle_pangu.core.policy import StepReport
from vllm_eagle_pangu.core.request import RequestView
from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.core.tree import TreeBatch
from vllm_eagle_pangu.kernels.tree_prune import Belief

# Nodes by chance, of which what trees would bring is remembered: 32 bins from 1 down to 1/256.
CHANCES = 2.0 ** -(np.arange(32) / 4)
# Bins of what the nodes of a level have of all probability.
SHARES = 8
# What one request's tree weighs in what is remembered, and a step in what a second is worth.
WEIGHT = 0.05
OF_LATE = 1 / 64
# Of what was seen of nodes before, how much each one leaves: some 500 count.
MEMORY = 0.998
# So often trees are remembered, and it is asked anew whether they pay, as where the batch changed;
# nobody says that they do not before so many were remembered.
REMEMBERED, REASSESSED, ENOUGH = 4, 8, 8
# Trees have all levels once in so many steps; where none pay, one is drafted less and less often.
LOOK_DEEPER = 32
LOOK_AGAIN = (16, 256)


class AdaptiveShapes:
    """A `TreePolicy`: up to `largest`, as deep and as many nodes as pay, or no tree.

    `costs.forward` may be filled before the first step. For engines on the host: it reads what was
    drafted while it is being drafted.
    """

    def __init__(self, largest: TreeShape, ops: Ops) -> None:
        self.largest = largest
        self.ops = ops
        self.costs = StepCosts()
        self.belief = Belief.empty(largest.depth)
        # Of a request: nodes by chance, `[bins]`, and levels of late, from so many trees.
        self.nodes, self.depth = np.zeros(len(CHANCES)), 0.0
        self._known = 0
        # `[D, SHARES]`: trees that were drafted below level d + 1, the chances of their new nodes,
        # and what these were worth beside their rows, by the sum of the probabilities that the head
        # gave the nodes to expand.
        prior = np.tile((np.arange(SHARES) + 0.5) / SHARES, (largest.depth, 1))
        self._asked, self._share, self._worth = np.ones_like(prior), 0.8 * prior, 0.8 * prior
        # By level and bin, what they come to: a tree's worth, and its bin one level below.
        self._worths: list[list[float]] = []
        self._bins_below: list[list[int]] = []
        # By level: the bins of the trees being drafted, `[T]`.
        self._bins: list[list[int]] = []
        # Tokens that steps with trees for all emitted of late, and that plain decoding had emitted.
        self._emitted = self._plainly = 0.0
        # Tokens per second of plain decoding. In tokens, what is worth the time of: a row, a level,
        # and a forward by its nodes.
        self._plain = self._row = self._level = 0.0
        self._nodes_cost = torch.zeros(1, dtype=torch.float64)
        # Of the step being planned: its trees, and whether they have all levels.
        self._drafted, self._whole = 0, True
        self._batch = 0
        self._pays = True
        self._plans = self._since_trees = 0
        self._patience = LOOK_AGAIN[0]

    def plan(self, requests: Sequence[RequestView]) -> Sequence[TreeShape | None]:
        """See `TreePolicy`: trees for all, or none; one alone, to look again."""
        batch = len(requests)
        self._plans += 1
        self._bins.clear()
        if batch != self._batch or self._plans % REASSESSED == 0:
            self._reassess(batch)
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
        """See `TreePolicy`: whether further levels bring more than their time is worth."""
        self.costs.drew(level, self._drafted)
        # Plain numbers: each call of numpy takes as long as ten requests.
        bins = [min(int(SHARES * sum(map(exp, row))), SHARES - 1) for row in score.tolist()]
        self._bins.append(bins)
        if self._whole:
            return True
        gain = 0.0
        for worth, below in zip(
            self._worths[level - 1 :], self._bins_below[level - 1 :], strict=True
        ):
            gain += sum([worth[each] for each in bins]) - self._level
            if gain > 0:
                return True
            bins = [below[each] for each in bins]
        return False

    def keep(self, trees: Sequence[TreeBatch], batch: int) -> Sequence[TreeBatch]:
        """See `TreePolicy`: the nodes that pay, the likeliest first in each tree."""
        if trees and self._bins and trees[0].max_depth == self.largest.depth:
            # Nobody asked for a level below the last.
            self.costs.drew_last(self._drafted)
        found = []
        # One batch of trees, as they were planned in one shape, unless the drafter cannot.
        for tree in trees:
            kept, chance = self.ops.tree_prune(tree, self.belief, self._nodes_cost)
            if not self._pays or self._plans % REMEMBERED == 0:
                self._remember(tree, chance.numpy())
            found.append(TreeBatch.of(kept, tree.max_depth))
        return found

    def observe(self, report: StepReport) -> None:
        """See `TreePolicy`."""
        # After steps without trees the head reads more than the last step's tokens.
        seconds = self.costs.saw(report, trees=self._pays and self._drafted == report.batch)
        tree, paths = report.tree, report.paths
        if tree is not None and paths is not None:
            self.ops.tally_paths(tree, paths.rows, paths.length, self.belief, MEMORY)
            # Steps that had a tree for all are compared with plain decoding.
            if tree.batch_size == self._batch == report.batch:
                tokens = tree.batch_size + int(paths.length.sum())
                self._emitted += OF_LATE * (tokens - self._emitted)
                self._plainly += OF_LATE * (self._plain * seconds - self._plainly)

    def _reassess(self, batch: int) -> None:
        """What a second is worth, and whether trees pay."""
        plain = self.costs.of_step(batch, 0, np.zeros(1))[0]
        self._plain = batch / plain if plain else 0.0
        gain = self._emitted / self._plainly if self._plainly else 1.0
        worth = max(gain, 1.0) * self._plain
        most = batch * self.largest.nodes
        forward = worth * self.costs.forward.at(batch + np.arange(most + 1))
        self._nodes_cost = torch.from_numpy(forward)
        self._row = (forward[-1] - forward[0]) / most
        self._level = worth * self.costs.level.at(batch)[0]
        self._worths = (self._worth / self._asked)[:-1].tolist()
        below = np.minimum(SHARES * self._share / self._asked, SHARES - 1)
        self._bins_below = below.astype(int)[:-1].tolist()
        if self._known >= ENOUGH:
            self._pays = self._expected(batch) > self._plain
        self._batch = batch

    def _expected(self, batch: int) -> float:
        """Tokens per second with trees, which are worth what they were lately."""
        nodes = batch * self.nodes
        emitted = batch + np.concatenate(([0.0], (nodes * CHANCES).cumsum()))
        verified = np.concatenate(([0.0], nodes.cumsum()))
        return float((emitted / self.costs.of_step(batch, self.depth, verified)).max())

    def _remember(self, tree: TreeBatch, chance: np.ndarray) -> None:
        level, valid = tree.depth.numpy(), chance > 0
        valid[:, 0] = False
        chance_bins = np.clip(np.rint(-4 * np.log2(chance[valid])).astype(int), 0, len(CHANCES) - 1)
        found = np.bincount(chance_bins, minlength=len(CHANCES)) / tree.batch_size
        # The mean of all, till there are more than are remembered.
        self._known += tree.batch_size
        leaves = min(1 - tree.batch_size / self._known, (1 - WEIGHT) ** tree.batch_size)
        self.nodes = leaves * self.nodes + (1 - leaves) * found
        self.depth = leaves * self.depth + (1 - leaves) * tree.max_depth
        for below in range(1, min(tree.max_depth, len(self._bins) + 1)):
            bins = self._bins[below - 1]
            found = np.where(level == below + 1, chance, 0.0)
            remain = (1 - WEIGHT) ** np.bincount(bins, minlength=SHARES)
            for means, each in (
                (self._asked, np.ones(len(bins))),
                (self._share, found.sum(axis=1)),
                (self._worth, np.maximum(found - self._row, 0.0).sum(axis=1)),
            ):
                means[below - 1] = remain * means[below - 1] + np.bincount(bins, each, SHARES)
