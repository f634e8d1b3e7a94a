# SPDX-License-Identifier: Apache-2.0
"""Accept: the target's draws to the path of each tree that they follow."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from vllm_eagle_pangu.core.ops import Ops
from vllm_eagle_pangu.core.paths import AcceptedPaths
from vllm_eagle_pangu.core.policy import StepReport
from vllm_eagle_pangu.kernels.indices import index_range
from vllm_eagle_pangu.step.place import Placed, PlacedTrees


@dataclass(frozen=True)
class AcceptedTrees:
    """`draws: [T, R] int64`: the target's token at each tree row; `paths`: along them."""

    draws: torch.Tensor
    paths: AcceptedPaths


@dataclass(frozen=True)
class Accepted:
    """What each request of the batch emits: `paths` of B requests; those without a tree accepted
    nothing and emit the draw at their only row of logits. `trees` is None where there are none."""

    placed: Placed
    trees: AcceptedTrees | None
    paths: AcceptedPaths

    @property
    def logit_rows(self) -> torch.Tensor:
        """`[B, D+1] int64`: the row of logits that each emitted token was drawn at."""
        return self.placed.first_logits[:, None] + self.paths.rows

    def report(self, seconds: Mapping[str, float], late: int = 0) -> StepReport:
        """What the step did; `seconds`: what each stage took; `late`: see `StepReport`."""
        view, placed, trees = self.placed.view, self.placed.trees, self.trees
        scheduled = () if placed is None else placed.scheduled
        return StepReport(
            batch=view.batch_size,
            rows=view.rows,
            requests=[view.requests[tree.request] for tree in scheduled],
            shapes=[tree.pending.shape for tree in scheduled],
            tree=None if placed is None else placed.tree,
            paths=None if trees is None else trees.paths,
            seconds=seconds,
            nodes=0 if placed is None else sum(placed.nodes),
            late=late,
        )


@dataclass(frozen=True)
class Unseen:
    """A step of a rest that nobody watches, `rows` tokens of `batch` requests: no stage runs.

    `further`: how many alike may follow unasked.
    """

    batch: int
    rows: int
    further: int

    def report(self, seconds: Mapping[str, float], late: int = 0) -> StepReport:
        """See `Accepted`; the drafter reads nothing of it."""
        return StepReport(self.batch, self.rows, (), (), None, None, seconds)


def accept(placed: Placed, drawn: torch.Tensor, depth: int, ops: Ops) -> Accepted:
    """Walk each tree from its root along `drawn: [R] int64`, a token per row of logits.

    Rows that no walk can come to may hold anything. `depth`: D, the deepest that any tree may be.
    """
    if placed.trees is None:
        return Accepted(placed, None, AcceptedPaths.of_roots(drawn, depth))
    tree = placed.trees.tree
    if placed.covers_batch and placed.trees.are_whole:
        draws = drawn.view_as(tree.tokens)
    else:
        draws = drawn[_logit_rows(placed, placed.trees)]
    walked = ops.tree_accept(tree.tokens, tree.parent, tree.valid, draws, depth)
    trees = AcceptedTrees(draws, walked)
    if placed.covers_batch:
        return Accepted(placed, trees, trees.paths)
    roots = AcceptedPaths.of_roots(drawn[placed.first_logits], depth)
    requests = placed.trees.requests
    paths = AcceptedPaths(
        rows=roots.rows.index_copy(0, requests, trees.paths.rows),
        length=roots.length.index_copy(0, requests, trees.paths.length),
        output=roots.output.index_copy(0, requests, trees.paths.output),
    )
    return Accepted(placed, trees, paths)


def _logit_rows(placed: Placed, trees: PlacedTrees) -> torch.Tensor:
    """`[T, R] int64`: the row of logits of each tree row; where there is none, the root's."""
    offsets = index_range(trees.tree.rows, trees.counts.device)
    exists = offsets < trees.counts[:, None]
    return placed.first_logits[trees.requests, None] + offsets * exists
