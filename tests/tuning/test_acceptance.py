# SPDX-License-Identifier: Apache-2.0
"""τ without an engine: what a small tree accepts, read off the candidates of a large one."""

import numpy as np
import pytest
import torch

from vllm_eagle_pangu.core.draft import TreeGrower
from vllm_eagle_pangu.core.ops import Ops
from vllm_eagle_pangu.core.shape import TreeShape, chain_shape
from vllm_eagle_pangu.tuning.recording import NEVER, Growth, Recording, step_lengths

WIDTH, DEPTH = 3, 4
CAPACITY = WIDTH + (DEPTH - 1) * WIDTH * WIDTH


def drafted_scores(seed: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Scores and distinct tokens of each level, as a drafter gives them; some scores are equal."""
    generator = torch.Generator().manual_seed(seed)
    levels = []
    for level in range(DEPTH):
        shape = (1, WIDTH) if level == 0 else (1, WIDTH, WIDTH)
        scores = torch.randint(-4, 0, shape, generator=generator).float() / 2
        tokens = torch.stack(
            [torch.randperm(5, generator=generator)[:WIDTH] for _ in range(scores.numel() // WIDTH)]
        )
        levels.append((scores.sort(dim=-1, descending=True).values, tokens.view(shape)))
    return levels


def grown(levels, shape: TreeShape):
    grower = TreeGrower(shape, Ops.bind("reference"))
    grower.grow_first(*levels[0])
    for scores, tokens in levels[1 : shape.depth]:
        grower.grow(scores, tokens)
    return grower.finish(torch.tensor([9]))


def accepted_by_walking(tree, following) -> int:
    row, count = 0, 0
    for token in following:
        fits = (tree.parent[0] == row) & (tree.tokens[0] == token) & tree.valid[0]
        children = [c for c in fits.nonzero().flatten().tolist() if c > 0]
        if not children:
            break
        row, count = children[0], count + 1
    return count


@pytest.mark.parametrize("seed", range(20))
def test_every_depth_and_budget_accepts_what_the_tree_grown_for_it_accepts(seed):
    levels = drafted_scores(seed)
    (growth,) = Growth.of(grown(levels, TreeShape(WIDTH, DEPTH, CAPACITY)))
    following = torch.randint(0, 5, (DEPTH,), generator=torch.Generator().manual_seed(seed))
    needed = growth.needed(following.tolist(), DEPTH)
    for depth in range(1, DEPTH + 1):
        for nodes in range(1, WIDTH + (depth - 1) * WIDTH * WIDTH + 1):
            tree = grown(levels, TreeShape(WIDTH, depth, nodes))
            accepted = int((needed[depth - 1, :depth] <= nodes).sum())
            assert accepted == accepted_by_walking(tree, following.tolist()), (depth, nodes)


def test_no_budget_accepts_what_was_no_candidate():
    growth = Growth(
        tokens=np.array([9, 1, 2]),
        parent=np.array([0, 0, 1]),
        depth=np.array([0, 1, 2]),
        score=np.array([0.0, -1.0, -2.0], dtype=np.float32),
    )
    assert growth.needed([1, 2], 2).tolist() == [[1, NEVER], [1, 2]]
    assert growth.needed([1, 7], 2).tolist() == [[1, NEVER], [1, NEVER]]
    assert growth.needed([2, 2], 2).tolist() == [[NEVER] * 2] * 2
    assert growth.needed([], 2).tolist() == [[NEVER] * 2] * 2


def test_steps_follow_each_other_and_end_with_the_text():
    # Root 0 and two accepted: tokens 1, 2 and the bonus 3, which is the next root.
    assert step_lengths([2, 9, 9, 1, 9, 3, 0], length=7, last=5) == [3, 2, 1]
    assert step_lengths([2, 9, 9, 1, 9, 3, 0], length=7, last=2) == [3]
    assert step_lengths([0], length=1, last=-1) == []


def recording(accepted: list[int], whole: bool) -> Recording:
    needed = np.full((len(accepted), 2, 2), NEVER, dtype=np.int32)
    for position, count in enumerate(accepted):
        needed[position, 1, :count] = range(1, count + 1)
    text = list(range(len(accepted)))
    return Recording(2, {"a": text}, {1: {"a": needed}}, {"a"} if whole else set())


def test_tau_leaves_out_steps_that_the_cut_of_a_text_could_shorten():
    accepted = [2, 0, 0, 1, 0, 2, 0]
    assert recording(accepted, whole=False).tau(chain_shape(2)) == pytest.approx((3 + 2) / 2)
    assert recording(accepted, whole=True).tau(chain_shape(2)) == pytest.approx((3 + 2 + 1) / 3)


def test_tau_of_a_text_without_a_step_is_none():
    assert recording([0], whole=True).tau(chain_shape(2)) is None
