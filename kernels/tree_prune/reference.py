# SPDX-License-Identifier: Apache-2.0
"""Definition of tree_prune and tally_paths."""

from dataclasses import dataclass

import torch

from vllm_eagle_pangu.kernels.indices import index_range
from vllm_eagle_pangu.kernels.tree_build.reference import Trees

# Probabilities nearer to 0 or 1 are taken for these, as logarithms.
LEAST, MOST = -13.8, -1e-6
# Before anything was seen, how firmly the head's word is taken.
PRIOR = 2.0
# How far each number of the line moves at most by the trees of one step.
STEP = 1.0


@dataclass(frozen=True)
class Belief:
    """A node is accepted after its parent with log-odds `line[k] @ (1, x, first)`.

    x: the log-odds that the head gave it; first: 1 for the likeliest child of its parent, of equal
    ones the lower row, else 0: a greedy target agrees with a head that is unsure far more often
    than it says, and with no other child. k, below K: the kind of its tree. `line: [K, 3]`;
    `information: [K, 3, 3]`, of what was seen, in the logistic regression of late: `float64`.
    """

    line: torch.Tensor
    information: torch.Tensor

    @classmethod
    def empty(cls, kinds: int = 1, device: torch.device | str = "cpu") -> "Belief":
        """Nothing seen: the head's word is taken."""
        line = torch.tensor([[0.0, 1.0, 0.0]] * kinds, dtype=torch.float64, device=device)
        return cls(line, line.new_zeros(kinds, 3, 3))


def tree_prune(
    trees: Trees, kind: torch.Tensor, belief: Belief, cost: torch.Tensor
) -> tuple[Trees, torch.Tensor]:
    """The nodes of all trees that are worth their cost, and every node's chance.

    Source: Yggdrasil's latency-aware objective, for a batch. A node's chance is that of its whole
    path, by `belief`: never more than its parent's. The N likeliest of all nodes are kept for the N
    at which the sum of their chances less `cost[N]` is largest (the least such N), and nodes as
    likely as the last of them. In each tree they come falling by chance, of equal ones the lower
    row first; the rest is padding.

    `kind: [B] int64`, of each tree. `cost: [n+1] float64`, at least as many as there are nodes and
    one: in tokens, by nodes kept.
    Returns trees of as many rows, and `[B, R] float64`, in the rows of `trees`: 1 at the root, 0 at
    padding.
    """
    chance = _chances(trees, belief.line[kind])
    falling = chance[:, 1:].flatten().sort(descending=True).values
    # No chance, no node.
    falling = falling[: int((falling > 0).sum())]
    brought = torch.cat([falling.new_zeros(1), falling.cumsum(0)])
    count = int((brought - cost[: len(brought)]).argmax())
    least = float(falling[count - 1]) if count else torch.inf
    keep = (chance >= least) & (chance > 0)
    keep[:, 0] = True
    order = chance.where(keep, -1.0).sort(dim=1, descending=True, stable=True).indices
    # The root is as likely as a sure child, and comes first.
    return _rows_of(trees, order, keep.gather(1, order)), chance


def tally_paths(
    trees: Trees,
    kind: torch.Tensor,
    rows: torch.Tensor,
    length: torch.Tensor,
    belief: Belief,
    memory: float,
) -> None:
    """Learn from verified trees: writes `belief`.

    The children of accepted rows were tried, and those that lie on the path accepted; what others
    would have met nobody knows. Each one tried leaves `memory` of what was seen of its kind before.

    `kind: [B] int64`, of each tree; `rows: [B, D+1] int64`, `length: [B] int64`: see
    `tree_accept.AcceptedPaths`.
    """
    used = index_range(rows.shape[1], rows.device) <= length[:, None]
    on_path = torch.zeros_like(trees.valid).scatter_(1, rows.where(used, 0), True)
    tried = trees.valid & on_path.gather(1, trees.parent)
    tried[:, 0] = False
    features = _features(trees)
    for each, (line, information) in enumerate(zip(belief.line, belief.information, strict=True)):
        those = tried & (kind == each)[:, None]
        _learn(features[those], on_path[those].double(), line, information, memory)


def _learn(
    features: torch.Tensor,
    accepted: torch.Tensor,
    line: torch.Tensor,
    information: torch.Tensor,
    memory: float,
) -> None:
    """A step of Newton's, from nodes of one kind: writes `line` and `information`."""
    chance = (features @ line).sigmoid()
    information.mul_(memory ** len(features))
    information.add_(features.T @ (features * (chance * (1 - chance))[:, None]))
    square = information + PRIOR * torch.eye(3, dtype=torch.float64, device=features.device)
    wrong = features.T @ (accepted - chance)
    step = torch.linalg.solve(square, wrong)
    # A node that the head thinks likelier is not believed to be less likely.
    if step[1] < -line[1]:
        step[1] = -line[1]
        wrong = wrong - square[:, 1] * step[1]
        step[::2] = torch.linalg.solve(square[::2, ::2], wrong[::2])
    line.add_(step.clamp_(-STEP, STEP))


def _features(trees: Trees) -> torch.Tensor:
    """`[B, R, 3] float64`: of each node 1, the log-odds that the head gave it after its parent, and
    whether it is the likeliest of its parent's children."""
    score = trees.score.where(trees.valid, 0.0)
    said = (score - score.gather(1, trees.parent)).double().clamp(LEAST, MOST)
    odds = said - (-said.expm1()).log()
    row = index_range(score.shape[1], score.device)
    # `[B, R, R]`: whether a row, the last index, comes before another child of its parent.
    before = (score[:, None] > score[:, :, None]) | (
        (score[:, None] == score[:, :, None]) & (row < row[:, None])
    )
    before &= (trees.parent[:, None] == trees.parent[:, :, None]) & trees.valid[:, None] & (row > 0)
    return torch.stack([torch.ones_like(odds), odds, (~before.any(dim=2)).double()], dim=2)


def _chances(trees: Trees, line: torch.Tensor) -> torch.Tensor:
    """`line: [B, 3]`, of each tree."""
    edge = (_features(trees) * line[:, None]).sum(dim=2).sigmoid()
    edge[:, 0] = 1.0
    chance = torch.zeros_like(edge)
    chance[:, 0] = 1.0
    # Parents come before their children.
    for row in range(1, edge.shape[1]):
        parent = trees.parent[:, row : row + 1]
        chance[:, row] = edge[:, row] * chance.gather(1, parent)[:, 0]
    return chance.masked_fill_(~trees.valid, 0.0)


def _rows_of(trees: Trees, order: torch.Tensor, valid: torch.Tensor) -> Trees:
    """The rows of `trees` in `order: [B, R]`, those not `valid` made padding."""
    place = torch.empty_like(order)
    place.scatter_(1, order, index_range(order.shape[1], order.device).expand_as(order))
    columns = order[:, None, :].expand_as(trees.visible)
    seen = trees.visible.gather(1, columns.transpose(1, 2)).gather(2, columns)
    visible = seen & valid[:, :, None]
    visible[:, :, 0] = True
    return Trees(
        tokens=trees.tokens.gather(1, order).where(valid, 0),
        parent=place.gather(1, trees.parent.gather(1, order)).where(valid, 0),
        depth=trees.depth.gather(1, order).where(valid, 0),
        valid=valid,
        visible=visible,
        score=trees.score.gather(1, order).masked_fill(~valid, -torch.inf),
    )
