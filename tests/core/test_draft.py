# SPDX-License-Identifier: Apache-2.0
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_eagle_pangu.core.draft import TreeGrower
from vllm_eagle_pangu.core.ops import Ops
from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.kernels.mask import ancestor_table

REFERENCE = Ops.bind("reference")
SHAPES = st.sampled_from(
    [
        TreeShape(1, 1, 1),
        TreeShape(1, 4, 4),
        TreeShape(2, 3, 6),
        TreeShape(3, 4, 13),
        TreeShape(4, 1, 3),
    ]
)


def drafts(shape: TreeShape, batch: int, seed: int, decimals: int = 6):
    """Top-W children of each level; few `decimals` make ties."""
    generator = torch.Generator().manual_seed(seed)
    for level in range(shape.depth):
        rows = () if level == 0 else (shape.width,)
        size = (batch, *rows, shape.width)
        scores = torch.randn(size, generator=generator).log_softmax(-1).round(decimals=decimals)
        yield (
            scores.sort(dim=-1, descending=True).values,
            torch.randint(1000, size, generator=generator),
        )


def grow(shape: TreeShape, batch: int, seed: int, decimals: int = 6):
    grower = TreeGrower(shape, REFERENCE)
    levels = list(drafts(shape, batch, seed, decimals))
    return grower, levels, [grower.grow(*level) for level in levels]


def expand_by_hand(levels, b: int, width: int):
    """EAGLE-2 expansion on plain paths: all candidates, and the frontier of each level.

    A candidate is (score, path of tokens, (frontier row, child) taken on each level); scores add up
    in float32 as drafted.
    """
    zero = torch.zeros(())
    frontier: list[tuple] = [(zero, (), ())]
    candidates, frontiers = [], []
    for scores, tokens in levels:
        children = []
        for row, (score, path, chosen) in enumerate(frontier):
            log_p = scores[b][row] if scores.dim() == 3 else scores[b]
            token = tokens[b][row] if tokens.dim() == 3 else tokens[b]
            for i in range(width):
                children.append((log_p[i] + score, (*path, int(token[i])), (*chosen, (row, i))))
        candidates += children
        frontier = sorted(children, key=lambda child: -float(child[0]))[:width]
        frontiers.append(frontier)
    return candidates, frontiers


@settings(deadline=None, max_examples=40)
@given(SHAPES, st.integers(0, 10**6), st.sampled_from([0, 1, 6]))
def test_frontier_is_the_best_children_of_the_last_one(shape, seed, decimals):
    _, levels, frontiers = grow(shape, 2, seed, decimals)
    for b in range(2):
        for mine, hand in zip(frontiers, expand_by_hand(levels, b, shape.width)[1], strict=True):
            assert mine.score[b].tolist() == [float(score) for score, _, _ in hand]
            assert mine.tokens[b].tolist() == [path[-1] for _, path, _ in hand]
            assert mine.parent[b].tolist() == [chosen[-1][0] for _, _, chosen in hand]


@settings(deadline=None, max_examples=40)
@given(SHAPES, st.integers(0, 10**6))
def test_frontier_row_sees_its_own_scratch_row_and_its_ancestors(shape, seed):
    _, _, frontiers = grow(shape, 2, seed)
    W = shape.width
    for level, frontier in enumerate(frontiers, start=1):
        assert frontier.level == level
        assert frontier.visible.shape == (2, W, level * W)
        for b in range(2):
            for w in range(W):
                expected, row = set(), w
                for above in range(level, 0, -1):
                    expected.add((above - 1) * W + row)
                    row = int(frontiers[above - 1].parent[b, row])
                assert set(frontier.visible[b, w].nonzero()[:, 0].tolist()) == expected


@settings(deadline=None, max_examples=40)
@given(SHAPES, st.integers(0, 10**6), st.sampled_from([0, 1, 6]))
def test_finished_tree_holds_the_best_paths(shape, seed, decimals):
    grower, levels, _ = grow(shape, 2, seed, decimals)
    tree = grower.finish(torch.tensor([5, 6]))
    tree.check()
    assert tree.tokens[:, 0].tolist() == [5, 6]
    for b in range(2):
        candidates, _ = expand_by_hand(levels, b, shape.width)
        order = sorted(range(len(candidates)), key=lambda c: (-float(candidates[c][0]), c))
        best = sorted(order[: shape.nodes])
        paths, ancestors = [], ancestor_table(tree.parent[b : b + 1], shape.depth)[0]
        for k in range(1, shape.rows):
            path = [int(tree.tokens[b, a]) for a in ancestors[:, k] if a]
            paths.append(tuple(reversed(path)))
        assert paths == [candidates[c][1] for c in best]
        assert tree.score[b, 1:].tolist() == [float(candidates[c][0]) for c in best]


def test_broken_drafter_scores_neither_rise_nor_spread():
    """NaN counts as impossible and a log-probability above 0 as certain."""
    shape = TreeShape(2, 2, 4)
    grower = TreeGrower(shape, REFERENCE)
    first = grower.grow(torch.tensor([[0.25, torch.nan]]), torch.tensor([[1, 2]]))
    assert first.score.tolist() == [[0.0, -torch.inf]]
    scores = torch.tensor([[[torch.inf, -1.0], [-0.5, -0.5]]], dtype=torch.bfloat16)
    second = grower.grow(scores, torch.tensor([[[3, 4], [5, 6]]]))
    assert second.score.tolist() == [[0.0, -1.0]]
    tree = grower.finish(torch.tensor([0]))
    tree.check()
    assert tree.tokens.tolist() == [[0, 1, 3, 4, 0]]
    assert tree.score.dtype == torch.float32


def test_requests_do_not_affect_each_other():
    shape = TreeShape(3, 4, 13)
    levels = list(drafts(shape, 4, seed=3))
    together, alone = TreeGrower(shape, REFERENCE), TreeGrower(shape, REFERENCE)
    for level in levels:
        together.grow(*level)
        alone.grow(*(tensor[2:3] for tensor in level))
    roots = torch.arange(4)
    one = together.finish(roots).select(torch.tensor([2]))
    other = alone.finish(roots[2:3])
    for name in ("tokens", "parent", "depth", "valid", "visible", "score"):
        assert torch.equal(getattr(one, name), getattr(other, name)), name


@given(SHAPES, st.integers(0, 2**31 - 1), st.integers(0, 5))
@settings(max_examples=100)
def test_the_first_nodes_down_to_a_depth_are_all_of_them(shape, seed, depth):
    grower, *_ = grow(shape, 3, seed)
    tree = grower.finish(torch.zeros(3, dtype=torch.long))
    behind = tree.depth[:, 1 + shape.nodes_down_to(depth) :]
    assert (behind[behind > 0] > depth).all()
    if shape.width == 1:
        assert shape.nodes_down_to(depth) == min(depth, shape.nodes)


@settings(deadline=None, max_examples=40)
@given(SHAPES, st.integers(1, 4), st.integers(0, 10**6), st.sampled_from(["reference", "cpp"]))
def test_trees_that_end_early_are_those_of_a_shallower_shape(shape, depth, seed, implementation):
    ops, depth = Ops.bind(implementation), min(depth, shape.depth)
    levels = list(drafts(shape, 3, seed))[:depth]
    nodes = min(shape.nodes, TreeShape(shape.width, depth, 1).capacity)
    grown = []
    for drafted in (shape, TreeShape(shape.width, depth, nodes)):
        grower = TreeGrower(drafted, ops)
        for level in levels:
            grower.grow(*level)
        grown.append(grower.finish(torch.arange(3)))
    early, shallow = grown
    early.check()
    assert early.max_depth == depth
    for mine, its in zip(vars(early).values(), vars(shallow).values(), strict=True):
        assert torch.equal(torch.as_tensor(mine), torch.as_tensor(its))
