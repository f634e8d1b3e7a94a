# SPDX-License-Identifier: Apache-2.0
"""The adaptive policy: its choice is the best there is, and it learns what it needs to know."""

import dataclasses
import itertools
import random
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pytest
import torch

from vllm_eagle_pangu.core.adaptive import MEMORY, AdaptiveShapes
from vllm_eagle_pangu.core.bends import Bends
from vllm_eagle_pangu.core.costs import FOLLOWING, MISSED, StepCosts
from vllm_eagle_pangu.core.durations import Durations
from vllm_eagle_pangu.core.following import PUT_OFF
from vllm_eagle_pangu.core.looks import (
    FOLLOWED,
    GOES_ON,
    HOPELESS,
    LOOK_AT_PLAIN,
    LOOK_AT_TREES,
    TREES,
    TRIAL,
    Looks,
    look_steps,
)
from vllm_eagle_pangu.core.ops import Ops
from vllm_eagle_pangu.core.policy import NONE, StepReport, TreePolicy, Unasked
from vllm_eagle_pangu.core.remembered import Remembered, narrower
from vllm_eagle_pangu.core.request import RequestView
from vllm_eagle_pangu.core.rest import SELDOM, TOGETHER, TOLD, TOLD_LATE
from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.core.speeds import Account
from vllm_eagle_pangu.core.tree import TreeBatch
from vllm_eagle_pangu.core.whole_step_costs import WholeStepCosts
from vllm_eagle_pangu.kernels.tree_accept import tree_accept
from vllm_eagle_pangu.kernels.tree_prune import Belief, tally_paths, tree_prune

from ..trees import tree_of_parents

SHAPE = TreeShape(2, 3, 5)
OPS = Ops.bind("reference")


def asked(trees: TreeBatch | None, temperature: float = 0.0) -> list[RequestView]:
    """Requests whose trees these are."""
    count = 0 if trees is None else trees.batch_size
    return [RequestView(str(row), 0, 0, 99, False, True, temperature) for row in range(count)]


def standing(count: int) -> list[RequestView]:
    """Requests that have been there for a while."""
    return [RequestView(str(row), 99, 100, 99, False, True) for row in range(count)]


def keep(policy: TreePolicy, trees: Sequence[TreeBatch], batch: int) -> Sequence[TreeBatch]:
    return policy.keep(trees, [asked(each) for each in trees], batch)


def all_alike(trees: TreeBatch) -> torch.Tensor:
    """Trees of one kind."""
    return torch.zeros(trees.batch_size, dtype=torch.int64)


def chances(tree: TreeBatch, belief: Belief | None = None) -> np.ndarray:
    """By node, of its whole path."""
    belief = belief or Belief.empty()
    free = torch.zeros(tree.batch_size * tree.rows, dtype=torch.float64)
    return tree_prune(tree, all_alike(tree), belief, free)[1].numpy()


def random_trees(seed: int, batch: int = 2, rows: int = 6, depth: int = 3) -> TreeBatch:
    """Trees with log-probabilities that fall along each path."""
    generator = torch.Generator().manual_seed(seed)
    parent = torch.zeros(batch, rows, dtype=torch.int64)
    level = torch.zeros(batch, rows, dtype=torch.int64)
    score = torch.zeros(batch, rows)
    for row in range(1, rows):
        possible = torch.rand(batch, row, generator=generator) - (level[:, :row] >= depth).float()
        parent[:, row] = possible.argmax(dim=1)
        above = parent[:, row : row + 1]
        level[:, row] = level.gather(1, above)[:, 0] + 1
        step = torch.rand(batch, generator=generator).clamp(0.05, 0.95).log()
        score[:, row] = score.gather(1, above)[:, 0] + step
    tokens = torch.randint(50, (batch, rows), generator=generator)
    return tree_of_parents(tokens, parent, depth, score=score)


def closed_sets(tree: TreeBatch, request: int) -> list[tuple[int, ...]]:
    """Every set of a tree's nodes in which each has its parent."""
    parent = tree.parent[request].tolist()
    nodes = range(1, tree.rows)
    subsets = itertools.chain.from_iterable(
        itertools.combinations(nodes, size) for size in range(tree.rows)
    )
    return [s for s in subsets if all(parent[node] in (0, *s) for node in s)]


@pytest.mark.parametrize("seed", range(20))
def test_the_likeliest_nodes_are_the_best_of_all_sets(seed):
    """Against every pair of closed sets of two trees, for step times of any form."""
    tree = random_trees(seed)
    chance = chances(tree)
    nodes = np.cumsum(np.random.default_rng(seed).exponential(1.0, 2 * tree.rows - 1))
    seconds = 3 + nodes
    best = max(
        (2 + sum(chance[0, list(a)]) + sum(chance[1, list(b)])) / seconds[len(a) + len(b)]
        for a in closed_sets(tree, 0)
        for b in closed_sets(tree, 1)
    )
    # Where a second is worth what the best of all brings in one, that one is found.
    cost = torch.from_numpy(best * seconds)
    kept, _ = tree_prune(tree, all_alike(tree), Belief.empty(), cost)
    count = int(kept.valid.sum()) - 2
    brought = 2 + chances(TreeBatch.of(kept, 3))[:, 1:].sum()
    assert brought / seconds[count] == pytest.approx(best)


@pytest.mark.parametrize("seed", range(5))
def test_what_is_kept_are_trees_of_the_likeliest_nodes(seed):
    policy = AdaptiveShapes(SHAPE, OPS)
    policy.costs.expect(1, 0.01)
    policy.costs.expect(16, 0.02)
    policy.costs.plain.expect((1, 3, 0), float(policy.costs.of_forward(3, np.zeros(1))[0]))
    tree = random_trees(seed, batch=3)
    policy.plan(standing(3))
    (kept,) = keep(policy, [tree], 3)
    kept.check()
    every = -np.sort(-chances(tree)[:, 1:].ravel())
    seconds = policy.costs.of_forward(3, np.arange(len(every) + 1))
    brought = np.concatenate(([0.0], every.cumsum()))
    count = int((brought - 3 / seconds[0] * seconds).argmax())
    assert 0 < int(kept.node_count.sum()) == count
    for request in range(3):
        had = {tuple(path(tree, request, row)) for row in range(1, tree.rows)}
        here = range(1, 1 + int(kept.node_count[request]))
        assert {tuple(path(kept, request, row)) for row in here} <= had
        falling = chances(kept)[request, 1 : 1 + len(here)]
        assert (np.diff(falling) <= 0).all()
        assert (falling >= every[count - 1] - 1e-12).all()


def test_steps_teach_what_they_take_where_some_trees_have_no_nodes():
    """An engine's scheduler is told of the others alone."""
    policy = AdaptiveShapes(SHAPE, OPS)
    tree = random_trees(0, batch=1)
    paths = tree_accept(tree.tokens, tree.parent, tree.valid, tree.tokens.roll(-1, dims=1), 3)
    with_trees = []
    while len(with_trees) < 15:
        with_trees.append(all(policy.plan(standing(4))))
        nodes = 0
        if with_trees[-1]:
            keep(policy, [random_trees(0, batch=4)], 4)
            nodes = int(tree.node_count.sum())
        of_trees = (tree, paths) if nodes else (None, None)
        seconds = {"verify": 0.01, "grow": 0.01}
        policy.observe(StepReport(4, 4 + nodes, asked(of_trees[0]), [], *of_trees, seconds, nodes))
    # But for the first of them, behind steps without, and the first of each width.
    assert sum(with_trees) == 7
    assert policy.costs.rest.known == 5
    assert policy.costs.forward.known == 5 + policy.costs.plain.known


Head = Callable[[tuple[int, ...]], list[float]]


def grown(head: Head, width: int, depth: int) -> TreeBatch:
    """A tree of all candidates of a head, which gives the chances of a path's tokens, falling."""
    found, level = {(): 0.0}, [()]
    for _ in range(depth):
        children = {}
        for path in level:
            for token, chance in enumerate(head(path)[:width]):
                children[(*path, token)] = found[path] + float(np.log(chance))
        found |= children
        level = sorted(children, key=lambda path: -children[path])[:width]
    paths = sorted(found, key=lambda path: (len(path), -found[path]))
    parent = torch.tensor([[paths.index(path[:-1]) if path else 0 for path in paths]])
    tokens = torch.tensor([[path[-1] if path else 0 for path in paths]])
    score = torch.tensor([[found[path] for path in paths]])
    return tree_of_parents(tokens, parent, depth, score=score)


def paths_of(tree: TreeBatch, request: int, rows: Iterable[int]) -> set[tuple[int, ...]]:
    return {tuple(path(tree, request, row)) for row in rows}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("width", [1, 2, 3])
def test_what_a_narrower_tree_holds_is_what_it_would_have_grown(seed, width):
    def head_of(request: int) -> Head:
        def head(path):
            said = random.Random(hash((seed, request, path)))
            return sorted((said.random() for _ in range(8)), reverse=True)

        return head

    trees = TreeBatch.stack([grown(head_of(request), 4, 3) for request in range(2)])
    held = narrower(trees, width)
    for request in range(2):
        rows = np.flatnonzero(held[request])
        alone = grown(head_of(request), width, 3)
        assert paths_of(trees, request, rows) == paths_of(alone, 0, range(alone.rows))
        assert len(rows) == alone.rows


@pytest.mark.parametrize("seed", range(8))
def test_a_level_is_worth_what_more_the_best_of_a_trees_nodes_are(seed):
    """Against every set of nodes, where the first few cost nothing and the next ones something."""
    rng = np.random.default_rng(seed)
    trees, tree = Remembered(TreeShape(4, 3, 8)), random_trees(seed, batch=1, rows=9)
    costs = np.cumsum(np.where(np.arange(9) < rng.integers(1, 6), 0.0, rng.exponential(0.1, 9)))
    chance, level = chances(tree), tree.depth[0].numpy()
    for _ in range(3000):
        trees.add(tree, chance, [[3], [5]], costs)

    def best(deepest: int) -> float:
        return max(
            float(sum(chance[0, list(nodes)]) - costs[len(nodes)] + costs[0])
            for nodes in closed_sets(tree, 0)
            if all(level[node] <= deepest for node in nodes)
        )

    worths, _ = trees.below()
    assert worths[3] == pytest.approx(best(2) - best(1), abs=1e-6)
    assert worths[5] == pytest.approx(best(3) - best(2), abs=1e-6)


class WideSteps:
    """Steps of a head whose first guess is mostly right; `row`: seconds of a row of a level."""

    def __init__(self, row: float) -> None:
        self.policy, self.row = AdaptiveShapes(TreeShape(4, 3, 36), OPS), row
        self.now, self.random = 0.0, random.Random(0)
        self.policy.costs.clock = lambda: self.now

    def step(self, batch: int) -> TreeShape | None:
        """What was planned for each request."""
        likely = [0.9, 0.03, 0.03, 0.03]
        shape, *_ = [None] if self.policy.rests(batch) else self.policy.plan(standing(batch))
        seconds, tree, paths, rows = {"verify": 0.02}, None, None, batch
        if shape is not None:
            began, depth, said = self.now, 1, np.log(likely[: shape.width])
            score = torch.from_numpy(said).float().expand(batch, -1)
            below = float(np.log(likely[0]))
            while depth < 3 and self.policy.deepen(depth, score + (depth - 1) * below):
                depth += 1
                self.now += 0.001 + self.row * batch * shape.width
            trees = [grown(lambda path: likely, shape.width, depth)] * batch
            (tree,) = keep(self.policy, [TreeBatch.stack(trees)], batch)
            answers = [*likely, 0.01]
            draws = [self.random.choices(range(5), answers, k=tree.rows) for _ in range(batch)]
            paths = tree_accept(tree.tokens, tree.parent, tree.valid, torch.tensor(draws), 3)
            rows = int(tree.valid.sum())
            seconds["grow"] = 0.001 + self.now - began
        of_trees = asked(tree), [], tree, paths
        self.policy.observe(StepReport(batch, rows, *of_trees, seconds, rows - batch))
        return shape


@pytest.mark.parametrize(("row", "width"), [(0.0, 4), (0.004, 1)])
def test_trees_are_as_wide_as_pays(row, width):
    steps = WideSteps(row)
    planned = [steps.step(1) for _ in range(400)]
    late = [shape.width for shape in planned[200:] if shape]
    assert late.count(width) > 0.9 * len(late) > 90


def test_the_first_look_of_all_alone_is_at_trees_of_all_widths():
    """Regression: batches of every other size began with the widest trees for all, which a wave of
    requests paid for at each doubling."""
    steps = WideSteps(0.004)
    at_first = [steps.step(1) for _ in range(40)]
    assert [shape and shape.width for shape in at_first[8:24]] == [4] * 16
    for _ in range(160):
        steps.step(1)
    # Eight steps without, then trees; one of them may be as wide as may be anyway.
    doubled = [steps.step(2) for _ in range(24)]
    assert doubled[:8] == [None] * 8 and all(doubled[8:])
    assert [shape.width for shape in doubled[8:]].count(1) >= 14


class OnADevice:
    """Steps of two requests, whose trees no host reads before they are drafted.

    `level`, `row`: seconds of a level, and of a row of forwards, which are padded to `sizes`. Each
    node's children are accepted with the chances that the head gives them.
    """

    def __init__(self, level: float, row: float, sizes: Sequence[int] = (), batch: int = 2) -> None:
        self.policy = AdaptiveShapes(TreeShape(2, 3, 10), OPS, on_host=False, sizes=sizes)
        self.level, self.row, self.sizes, self.random = level, row, sizes, random.Random(0)
        self.tree: TreeBatch | None = None
        self.batch = batch

    def step(self) -> tuple[TreeShape | None, int]:
        """What was planned, and how many rows were verified."""
        batch = self.batch
        likely, tree, paths, rows = [0.8, 0.15], self.tree, None, batch
        if tree is not None:
            draws = [
                self.random.choices(range(3), [*likely, 0.05], k=tree.rows) for _ in range(batch)
            ]
            paths = tree_accept(tree.tokens, tree.parent, tree.valid, torch.tensor(draws), 3)
            rows += int(tree.node_count.sum())
        seconds = {"verify": 0.001, "other": 0.02 + self.row * self._padded(rows)}
        shape, *_ = (
            [None] if not tree and self.policy.rests(batch) else self.policy.plan(standing(batch))
        )
        self.tree = None
        if shape is not None:
            for level in range(1, shape.depth):
                # Numbers that nobody can read.
                assert self.policy.deepen(level, torch.empty(batch, shape.width, device="meta"))
            trees = [grown(lambda path: likely, shape.width, shape.depth) for _ in range(batch)]
            (self.tree,) = keep(self.policy, [TreeBatch.stack(trees)], batch)
            seconds["grow"] = 0.001 + self.level * (shape.depth - 1)
        self.policy.observe(
            StepReport(batch, rows, asked(tree), [], tree, paths, seconds, rows - batch)
        )
        return shape, rows

    def _padded(self, rows: int) -> int:
        return min((size for size in self.sizes if size >= rows), default=rows)


@pytest.mark.parametrize(("level", "depth"), [(0.0005, 3), (0.02, 1)])
def test_on_a_device_trees_are_as_deep_as_pays(level, depth):
    steps = OnADevice(level, row=0.0001)
    late = [shape for shape, _ in [steps.step() for _ in range(800)][400:] if shape]
    assert [shape.depth for shape in late].count(depth) > 0.85 * len(late) > 300
    costs = steps.policy.costs
    costs.solve()
    assert costs.of_level(4) == pytest.approx(level, rel=0.1, abs=2e-4)


def test_on_a_device_a_look_that_takes_long_lasts_till_other_trees_were_seen():
    """Regression: it was over behind the widest ones, which alone do not tell what levels take: in
    the simulator no tree was drafted any more for 32 requests, whom smaller ones serve best."""
    steps, shapes = OnADevice(0.3, row=0.0001, batch=32), []
    for _ in range(LOOK_AT_PLAIN + LOOK_AT_TREES):
        # As far as is known from what steps were expected to take.
        steps.policy._hopes[32] = 2000.0
        shapes.append(steps.step()[0])
    sizes = [(each.width, each.depth) for each in shapes if each]
    assert sizes == [(2, 3)] * (LOOK_AT_TREES // 2) + [(1, 1)] * (LOOK_AT_TREES // 2)


def test_on_a_device_a_forward_is_as_large_as_it_is_padded_to():
    """What a padded row would cost is paid already."""
    steps = OnADevice(0.0005, row=0.002, sizes=(4, 8, 16, 32))
    rows = [rows for _, rows in [steps.step() for _ in range(800)][400:] if rows > 2]
    assert len(rows) > 300 and sum(count in (4, 8, 16) for count in rows) > 0.9 * len(rows)
    of_4, of_5, of_8, of_9 = steps.policy.costs.of_forward(2, np.array([2, 3, 6, 7]))
    assert of_4 < of_5 == of_8 < of_9


class DearTrees:
    """Steps of a policy whose trees take a hundred times as long as all else."""

    def __init__(self) -> None:
        self.policy, self.nodes = AdaptiveShapes(SHAPE, OPS), 0
        self.widths: list[int] = []

    def step(self, batch: int, requests: Sequence[RequestView] = ()) -> str:
        """What was planned for a batch, of these `requests`."""
        rests = not self.nodes and self.policy.rests(batch)
        plan = [] if rests else self.policy.plan(requests or standing(batch))
        drafted = sum(map(bool, plan))
        self.widths += [shape.width for shape in plan[:1] if shape]
        seconds = {"verify": 0.01, "grow": 1.0 if drafted else 0.0}
        rows, nodes = batch + self.nodes, self.nodes
        self.policy.observe(StepReport(batch, rows, [], [], None, None, seconds, nodes))
        self.nodes = 0
        if drafted:
            (kept,) = keep(self.policy, [random_trees(0, batch=drafted)], batch)
            self.nodes = int(kept.node_count.sum())
        return "rest" if rests else "trees" if drafted == batch else "none"


def test_where_trees_are_far_from_paying_a_larger_batch_does_not_try_them_all():
    steps = DearTrees()
    assert [steps.step(4) for _ in range(60)].count("trees") >= 8
    for batch in (8, 32):
        assert {steps.step(batch) for _ in range(60)} == {"rest"}


def test_whether_to_draft_is_decided_once_for_batches_of_about_one_size():
    steps = DearTrees()
    while steps.step(8) != "rest":
        continue
    for batch in (7, 8, 6, 9, 11, 8):
        assert {steps.step(batch) for _ in range(20)} == {"rest"}
    assert "trees" in {steps.step(4) for _ in range(60)}


def test_requests_that_come_and_go_are_no_reason_to_reckon_anew():
    policy, tree, counted = AdaptiveShapes(SHAPE, OPS), None, []
    solve = policy.costs.solve
    policy.costs.solve = lambda: (counted.append(len(planned)), solve())
    planned = []
    for step in range(600):
        batch = 4 - step % 2
        paths, nodes = None, 0
        if tree is not None:
            paths = tree_accept(tree.tokens, tree.parent, tree.valid, tree.tokens.roll(-1, 1), 3)
            nodes = int(tree.node_count.sum())
        seconds = {"verify": 0.01, "grow": 0.001}
        of_trees = asked(tree), [], tree, paths
        policy.observe(StepReport(batch, batch + nodes, *of_trees, seconds, nodes))
        planned.append(all(policy.plan(standing(batch))))
        tree = keep(policy, [chains(policy, batch)], batch)[0] if planned[-1] else None
    assert sum(planned[300:]) > 250
    assert len([step for step in counted if step >= 300]) < 300 / 8


def test_far_from_paying_the_drafter_rests_and_follows_again_before_the_next_look():
    steps = DearTrees()
    planned = [steps.step(4) for _ in range(9000)]
    runs = [(kind, len(list(run))) for kind, run in itertools.groupby(planned)]
    # A look takes a hundred times as long as it may: the longest there is between two of them.
    rests = [length for kind, length in runs if kind == "rest"]
    assert len(rests) == 3 and all(4000 < length < 4096 for length in rests[:2])
    # The steps in which it follows are the look at plain ones, too.
    for place, (kind, _) in enumerate(runs[:-1]):
        if kind == "rest":
            assert runs[place + 1] == ("none", FOLLOWED - 1)
    # But for nobody once that look has failed: a step, which was planned before it was over.
    for place, (kind, length) in enumerate(runs):
        if kind == "none" and place > 2 and runs[place - 1][0] == "trees":
            assert length == 1 and runs[place + 1][0] == "rest"
    # A smaller batch, whose trees nobody has seen, is not judged by drafts without a text.
    planned = [steps.step(2) for _ in range(FOLLOWED + 10)]
    assert set(planned[: FOLLOWED - 1]) == {"none"} and "trees" in planned


def test_behind_a_rest_nobody_waits_for_a_drafter_that_knows_all_requests():
    """Regression: requests that came behind a rest went without trees for as many steps as those
    whose tokens the drafter had missed."""

    def rested() -> DearTrees:
        steps = DearTrees()
        while steps.step(4) != "rest":
            continue
        return steps

    begun = [request._replace(id=f"new {request.id}", committed=0) for request in standing(2)]
    one_before = [standing(1)[0], begun[0]]
    for requests, waits in ((begun, LOOK_AT_PLAIN), (one_before, FOLLOWED - 1)):
        steps = rested()
        assert [steps.step(2, requests) for _ in range(waits)] == ["none"] * waits
        assert steps.step(2, requests) == "trees"
    # Nor do those whose prompts the drafter put off, behind whom others waited.
    steps = rested()
    assert not steps.policy.rests(2) and steps.policy.puts_off(begun, new=2, waiting=2)
    steps.policy.observe(StepReport(2, 200, [], [], None, None, {"verify": 0.03}, late=200))
    later = [request._replace(committed=99) for request in begun]
    assert [steps.step(2, later) for _ in range(LOOK_AT_PLAIN)] == ["none"] * LOOK_AT_PLAIN
    assert steps.step(2, later) == "trees"
    # Once those who were there before have gone, nobody waits any longer.
    steps = rested()
    assert {steps.step(2, one_before) for _ in range(LOOK_AT_PLAIN + 4)} == {"none"}
    assert [steps.step(2, begun) for _ in range(LOOK_AT_PLAIN + 1)][-1] == "trees"


def test_half_of_every_fourth_look_is_at_narrower_trees():
    """The others are as wide as trees would be, but for a step now and then."""
    steps, narrow = DearTrees(), []
    for _ in range(18000):
        if steps.step(4) == "rest" and steps.widths:
            narrow.append(steps.widths.count(1) / len(steps.widths))
            steps.widths.clear()
    assert [share >= 0.4 for share in narrow] == [True, False, False, False, True]


@pytest.mark.parametrize("batch", [2, 20, 21])
def test_a_forward_of_many_rows_has_a_number_of_them_that_comes_often(batch):
    """Where all nodes are worth as much as they can be, and each a little more than it costs."""
    tree = random_trees(1, batch=batch)
    # No two nodes are as likely.
    noise = torch.rand(tree.score.shape, generator=torch.Generator().manual_seed(0))
    tree = dataclasses.replace(tree, score=tree.score * (1 + noise / 100))
    counts = set()
    for dear in np.linspace(0.05, 0.9, 40):
        policy = AdaptiveShapes(SHAPE, OPS)
        policy.plan(standing(batch))
        policy._prices.nodes = dear * np.arange(5 * batch + 1)
        (kept,) = keep(policy, [tree], batch)
        counts.add(int(kept.node_count.sum()))
    assert len(counts) > 3
    for count in counts - {0, int(tree.node_count.sum())}:
        assert batch + count <= 16 or (batch + count) % 8 == 0


def test_where_many_come_together_the_first_ones_trees_wait():
    policy = AdaptiveShapes(SHAPE, OPS)

    def puts_off(batch: int, new: int, waiting: int) -> bool:
        return policy.puts_off(standing(batch), new, waiting)

    crowd = [(1, 1, 13), (12, 11, 4), (16, 4, 0)]
    assert [puts_off(*step) for step in crowd] == [True, True, False]
    # Not for whoever comes one by one, nor where long prompts are read one behind the other.
    assert not any(puts_off(*step) for step in [(16, 1, 1), (16, 0, 1), (8, 1, 3)])
    # A crowd without end gets trees in the end, and once it ended another one is waited for.
    assert [puts_off(8, 8, 99) for _ in range(12)] == [True] * PUT_OFF + [False] * 8
    assert [puts_off(8, 8, waiting) for waiting in (0, 99)] == [False, True]


def test_what_a_number_of_rows_takes_is_learnt_from_the_second_time_on():
    costs = StepCosts()

    def saw(rows: int, seconds: float, drafted: int = 0, before: int = 0) -> None:
        report = StepReport(rows, rows, [], [], None, None, {"verify": seconds})
        costs.saw(report, drafted, before, 1)

    for rows in (4, 8):
        saw(rows, 9.0)
        saw(rows, 9.0, before=4)
        for _ in range(5):
            saw(rows, 0.01 * rows)
    costs.solve()
    assert costs.plain.known == 10
    assert costs.of_plain(8) == pytest.approx(0.08, rel=0.1)


def test_a_plain_step_takes_what_it_would_if_the_drafter_did_not_follow():
    """Its time with a prompt's row, too."""
    costs = StepCosts()
    for turn in range(40):
        prompts = 50 * (turn % 2)
        seconds = {"verify": 0.01 + 0.0001 * prompts} | dict.fromkeys(FOLLOWING, 0.5)
        report = StepReport(4, 4 + prompts, [], [], None, None, seconds)
        costs.saw(report, drafted=0, before=0, width=1)
    costs.solve()
    assert costs.of_plain(4) == pytest.approx(0.01, rel=0.02)
    assert costs.of_prompt_row(trees=False) == pytest.approx(0.0001, rel=0.05)


def test_verifying_any_node_takes_more_than_its_rows_do():
    """Regression: that was laid to the rows, each of which was believed twice as dear as it was,
    in a model whose steps take milliseconds."""
    costs, random = StepCosts(), np.random.default_rng(0)
    for turn in range(300):
        plain = turn % 64 < 8
        nodes = 0 if plain else int(random.integers(4, 28))
        seconds = {"verify": 0.003 + 0.001 * (nodes > 0) + 0.0001 * (4 + nodes), "extend": 0.001}
        tree = None if plain else random_trees(0, batch=4, rows=8)
        report = StepReport(4, 4 + nodes, asked(tree), [], tree, None, seconds, nodes)
        costs.saw(report, drafted=0 if plain else 4, before=0 if plain else 4, width=1)
    costs.solve()
    none, one, more = costs.of_forward(4, np.array([0, 1, 21])).tolist()
    assert (more - one) / 20 == pytest.approx(0.0001, rel=0.1)
    # A part of it is laid to every forward, as nearly all verify nodes.
    assert 0.0006 < one - none < 0.0011


def test_forwards_take_what_those_of_as_many_rows_took_where_no_line_has_it():
    """Regression: up to 6 rows took as long as one, and each further one a thirtieth: of what a
    line has for all, one client's trees had too few nodes, or too many. Beside 32 requests before,
    whose rows are on a line."""
    costs, random = StepCosts(), np.random.default_rng(0)

    def forward(rows: int) -> float:
        return 0.0225 if rows <= 6 else 0.025 + 0.00075 * (rows - 7)

    def saw(batch: int, nodes: int) -> None:
        seconds = forward(batch + nodes) * random.lognormal(0, 0.03)
        of_trees = [], [], None, None, {"verify": float(seconds)}
        drafted = batch * (nodes > 0)
        costs.saw(StepReport(batch, batch + nodes, *of_trees, nodes), drafted, drafted, 1)

    for batch, nodes in ((32, (32, 96)), (1, (2, 13))):
        for step in range(400):
            saw(batch, 0 if step % 64 < 8 else int(random.integers(*nodes)))
            if step % 8 == 0:
                costs.solve()
    few = costs.of_forward(1, np.arange(2, 13))
    assert few == pytest.approx([forward(1 + nodes) for nodes in range(2, 13)], rel=0.03)
    # Of what was never seen, the line, as far from it as what is nearest.
    assert costs.of_forward(1, np.array([16]))[0] == pytest.approx(forward(17), rel=0.06)
    assert costs.of_forward(32, np.array([80]))[0] == pytest.approx(forward(112), rel=0.06)


def test_rows_that_came_in_slow_seconds_are_not_dearer_for_that():
    """Regression: a number of rows that came while the machine was slower was believed dearer, and
    came no more."""
    bends, random = Bends(), np.random.default_rng(0)
    for step in range(2000):
        slow = step % 128 < 64
        often, seldom = (5, 6) if slow else (6, 5)
        rows = often if random.random() < 0.75 else seldom
        bends.saw(0, rows, (1.2 if slow else 1.0) * 0.0045 * random.lognormal(0, 0.05))
    rows, times = bends.curve(0, first=0.0045, row=0.0)
    assert rows.tolist() == [5, 6]
    assert times == pytest.approx(1.0, abs=0.03)


def test_a_prompt_that_was_only_read_beside_trees_takes_some_of_that_without():
    """As plain steps are few where trees pay: the target reads it in both."""
    costs, tree = StepCosts(), random_trees(0, batch=4, rows=3)
    for turn in range(40):
        prompts = 50 * (turn % 2)
        seconds = {"verify": 0.02 + 0.0003 * prompts, "extend": 0.001 + 0.0001 * prompts}
        report = StepReport(4, 12 + prompts, asked(tree), [], tree, None, seconds, 8)
        costs.saw(report, drafted=4, before=4, width=1)
    costs.solve()
    assert costs.of_prompt_row(trees=False) == pytest.approx(0.0003, rel=0.05)
    assert costs.of_prompt_row(trees=True) == pytest.approx(0.0004, rel=0.05)


def test_beside_trees_a_prompt_takes_longer_by_what_the_drafter_takes_alone():
    """Regression: what the target takes for it was told by plain steps, and apart from these by
    steps with trees, and where both read few tokens at different times the difference was noise
    that decided whether trees are drafted."""
    costs, tree = StepCosts(), random_trees(0, batch=4, rows=3)
    for turn in range(60):
        prompts = 50 * (turn % 2)
        seconds = {"verify": 0.02 + 0.0009 * prompts, "extend": 0.001 + 0.0001 * prompts}
        report = StepReport(4, 12 + prompts, asked(tree), [], tree, None, seconds, 8)
        costs.saw(report, drafted=4, before=4, width=1)
        seconds = {"verify": 0.02 + 0.0003 * prompts}
        costs.saw(StepReport(4, 4 + prompts, [], [], None, None, seconds), 0, 0, 1)
    costs.solve()
    without, beside = (costs.of_prompt_row(trees) for trees in (False, True))
    assert 0.0003 < without < 0.0009
    assert beside - without == pytest.approx(0.0001, rel=0.05)


def test_the_long_prompts_of_an_engine_s_first_step_tell_little_of_those_that_come_one_by_one():
    """Regression: a rest's few steps with prompts were believed for minutes to take a third of what
    they took, as the first one had read four times as many tokens at once, each for less."""
    costs, tree = StepCosts(), random_trees(0, batch=4, rows=3)
    for turn in range(160):
        prompts = 60 * (turn % 8 == 7)
        seconds = {"verify": 0.03 + 0.0007 * prompts, "extend": 0.001}
        report = StepReport(4, 12 + prompts, asked(tree), [], tree, None, seconds, 8)
        costs.saw(report, drafted=4, before=4, width=1)
    for prompts in (240, *[0] * 16):
        report = StepReport(4, 4 + prompts, [], [], None, None, {"verify": 0.02 + 0.0003 * prompts})
        costs.saw(report, drafted=0, before=0, width=1)
    costs.solve()
    for trees in (False, True):
        assert costs.of_prompt_row(trees) == pytest.approx(0.0007, rel=0.15)


@pytest.mark.parametrize("on_host", [True, False])
@pytest.mark.parametrize(("batch", "before"), [(1, 0), (2, 1)])
def test_what_the_drafter_takes_for_a_prompt_is_learnt_of_one_client_or_two(on_host, batch, before):
    """Regression: whoever asks again has no tree yet, and of one request or two that is half of
    them at least: such steps taught nothing, and trees that lost 4 % by prompts were drafted."""
    costs = StepCosts() if on_host else WholeStepCosts(())
    tree, others = (random_trees(0, batch=size, rows=3) for size in (batch, 1))
    for turn in range(80):
        if turn % 2:
            # The request's first step, which the admission of it makes longer, trees or not.
            seconds = {"verify": 0.02 + 0.03, "extend": 0.001 + 0.01, "other": 0.006}
            had, nodes = (others, 2) if before else (None, 0)
            rows = batch + nodes + 100
            report = StepReport(batch, rows, asked(had), [], had, None, seconds, nodes)
            costs.saw(report, drafted=batch, before=before, width=1)
        else:
            seconds = {"verify": 0.02, "extend": 0.001, "other": 0.001}
            nodes = 2 * batch
            report = StepReport(batch, batch + nodes, asked(tree), [], tree, None, seconds, nodes)
            costs.saw(report, drafted=batch, before=batch, width=1)
        prompts = 100 * (turn // 2 % 2)
        of_host = 0.001 + 0.00005 * prompts
        seconds = {"verify": 0.02 + 0.0003 * prompts, "other": of_host}
        costs.saw(StepReport(batch, batch + prompts, [], [], None, None, seconds), 0, 0, 1)
    costs.solve()
    assert costs.of_prompt_row(trees=False) == pytest.approx(0.00035, rel=0.05)
    assert costs.of_prompt_row(trees=True) == pytest.approx(0.00045, rel=0.05)


def test_prompts_that_the_drafter_put_off_are_reckoned_where_it_reads_them():
    """What it takes for each is the same, and a step in which it reads none tells nothing of it."""
    costs, tree = StepCosts(), random_trees(0, batch=4, rows=3)

    def saw(prompts: int, late: int, nodes: int) -> None:
        seconds = {"verify": 0.02 + 0.0003 * prompts, "extend": 0.001 + 0.0001 * (prompts - late)}
        had, rows = tree if nodes else None, 4 + nodes + prompts
        report = StepReport(4, rows, asked(had), [], had, None, seconds, nodes, late)
        costs.saw(report, drafted=0 if late > 0 else 4, before=nodes and 4, width=1)

    for turn in range(40):
        # A crowd comes in two steps, and behind it prompts one by one.
        saw(300, 300, 8)
        saw(200, -300, 0)
        saw(50 * (turn % 2), 0, 8)
    costs.solve()
    assert costs.of_prompt_row(trees=False) == pytest.approx(0.0003, rel=0.05)
    assert costs.of_prompt_row(trees=True) == pytest.approx(0.0004, rel=0.05)
    assert costs.of_rest(4, 1) == pytest.approx(0.001, rel=0.05)


@pytest.mark.parametrize("on_host", [True, False])
def test_time_in_which_nobody_asked_for_anything_is_no_step_s(on_host):
    """Regression: what passed before somebody asked was taken for what the prompt took, up to
    another forward: three times as much, and trees that paid were not drafted beside prompts."""
    costs, tree = StepCosts() if on_host else WholeStepCosts(()), random_trees(0, batch=4, rows=3)
    for turn in range(60):
        prompts = 50 * (turn % 2)
        # A prompt comes sooner or later, and now and then clients are slow to take an answer.
        idle = [0.0005, 0.015, 0.0005, 5.0, 9.0, 0.001][turn % 6]
        seconds = {"verify": 0.02 + 0.0003 * prompts, "extend": 0.001, "between": idle}
        report = StepReport(4, 12 + prompts, asked(tree), [], tree, None, seconds, 8)
        costs.drew(1)
        costs.saw(report, drafted=4, before=4, width=1)
    costs.solve()
    assert costs.of_prompt_row(trees=True) == pytest.approx(0.0003, rel=0.05)
    forward = float(costs.of_forward(4, np.array([8]))[0])
    assert forward + costs.of_rest(4, 1) == pytest.approx(0.0212, rel=0.05)


def test_a_few_tokens_of_a_prompt_beside_trees_tell_little():
    """Regression: requests that begin and end together have next to none; six, in a step whose
    number of rows was new, made trees ten times as dear as they were wherever prompts are read."""
    costs, tree = StepCosts(), random_trees(0, batch=4, rows=3)

    def saw(prompts: int, seconds: dict[str, float], trees: bool) -> None:
        nodes, drafted = (8, 4) if trees else (0, 0)
        of_trees = (asked(tree), [], tree, None) if trees else ([], [], None, None)
        report = StepReport(4, 4 + nodes + prompts, *of_trees, seconds, nodes)
        costs.saw(report, drafted, drafted, 1)

    for turn in range(40):
        prompts = 400 * (turn % 2)
        saw(prompts, {"verify": 0.004 + 0.00004 * prompts}, trees=False)
        saw(0, {"verify": 0.004, "extend": 0.001}, trees=True)
    saw(6, {"verify": 0.007, "extend": 0.002}, trees=True)
    costs.solve()
    assert 0.00004 < costs.of_prompt_row(trees=True) < 0.00006


def test_steps_of_a_rest_are_learnt_from_together():
    steps = DearTrees()
    while steps.step(4) != "rest":
        pass
    costs = steps.policy.costs
    for _ in range(TOGETHER - 1):
        assert steps.step(4) == "rest" and costs.missed == 0
    steps.step(4)
    assert costs.missed == TOGETHER
    # And at once by whoever asks.
    assert steps.policy.account(4).plain_s == pytest.approx(0.01)
    assert costs.missed == TOGETHER + 1


def test_an_old_rest_is_told_of_less():
    steps, unasked, told = DearTrees(), NONE, []
    while steps.step(4) != "rest":
        pass
    policy, passed = steps.policy, 0
    while stretch := policy.rests(4, unasked):
        policy.observe(StepReport(4, 4, [], [], None, None, {"verify": 0.01}))
        rows = 4 * (stretch - 1)
        unasked = Unasked(4, stretch - 1, rows, rows, stretch - 1, 0.01 * (stretch - 1))
        passed += stretch
        told.append((passed, stretch))
    # The last stretch ends where the next look begins.
    of_old = [stretch for passed, stretch in told[:-1] if passed > (SELDOM + 1) * TOLD_LATE]
    assert {stretch for passed, stretch in told if passed < SELDOM * TOLD} == {TOLD}
    assert set(of_old) == {TOLD_LATE} and len(of_old) > 4
    assert told[:-1] == sorted(told[:-1], key=lambda each: each[1])


def test_a_step_that_hangs_was_to_emit_no_more_than_others():
    policy = AdaptiveShapes(SHAPE, OPS)
    tree = random_trees(0, batch=4)
    paths = tree_accept(tree.tokens, tree.parent, tree.valid, tree.tokens.roll(-1, dims=1), 3)
    policy._hopes[4] = 100.0
    hoped = []
    for seconds in [0.02] * 60 + [5.0]:
        policy._drafted = policy._drafted_before = 4
        nodes = int(tree.node_count.sum())
        took = {"verify": seconds, "grow": 0.01}
        report = StepReport(4, 4 + nodes, asked(tree), [], tree, paths, took, nodes)
        policy.observe(report)
        policy.costs.solve()
        hoped.append(policy.speeds.kept.late[1])
    assert hoped[-2] > 0
    assert 0 < hoped[-1] - hoped[-2] < hoped[-2] - hoped[-3]


def test_trees_of_a_drafter_that_asks_nothing_are_kept_and_learnt_from_too():
    policy = AdaptiveShapes(SHAPE, OPS)
    for seed in range(8):
        policy.plan(standing(3))
        trees = [random_trees(seed, batch=1), random_trees(seed, batch=2, rows=4)]
        kept = keep(policy, trees, 3)
        assert [tree.batch_size for tree in kept] == [1, 2]
        for tree in kept:
            tree.check()
            draws = tree.tokens.roll(-1, dims=1)
            paths = tree_accept(tree.tokens, tree.parent, tree.valid, draws, 3)
            nodes, took = int(tree.node_count.sum()), {"verify": 0.01, "grow": 0.01}
            policy.observe(StepReport(3, 3, asked(tree), [], tree, paths, took, nodes))
    assert policy.belief.information[0, 0, 0] > 1 and policy.trees.nodes.sum() > 0


def path(tree: TreeBatch, request: int, row: int) -> list[int]:
    tokens = []
    while row:
        tokens.append(int(tree.tokens[request, row]))
        row = int(tree.parent[request, row])
    return tokens[::-1]


def test_a_head_that_says_too_much_is_believed_less():
    """It says 0.9 and is right every third time, 0.2 and never is."""
    belief = Belief.empty()
    score = torch.tensor([[0.0, 0.9, 0.2]]).log()
    score[0, 0] = 0
    tree = tree_of_parents(torch.tensor([[0, 1, 2]]), torch.tensor([[0, 0, 0]]), 1, score=score)
    before = chances(tree, belief)
    assert before[0] == pytest.approx([1, 0.9, 0.2], abs=1e-4)
    for turn in range(300):
        draws = torch.tensor([[1 if turn % 3 == 0 else 40, 41, 42]])
        paths = tree_accept(tree.tokens, tree.parent, tree.valid, draws, 1)
        tally_paths(tree, all_alike(tree), paths.rows, paths.length, belief, MEMORY)
    after = chances(tree, belief)[0]
    assert after[1] == pytest.approx(1 / 3, abs=0.05)
    assert after[2] < 0.02


def test_the_likeliest_child_of_a_greedy_target_is_believed_more_than_another_as_likely():
    """Regression: one line for all had them alike, and of a head that was unsure too few levels
    were drafted, where its first word was right twice as often as it said."""
    belief = Belief.empty()
    score = torch.tensor([[0.0, 0.3, 0.29]]).log()
    score[0, 0] = 0
    tree = tree_of_parents(torch.tensor([[0, 1, 2]]), torch.tensor([[0, 0, 0]]), 1, score=score)
    for turn in range(300):
        draws = torch.tensor([[(1, 1, 1, 40, 2)[turn % 5], 41, 42]])
        paths = tree_accept(tree.tokens, tree.parent, tree.valid, draws, 1)
        tally_paths(tree, all_alike(tree), paths.rows, paths.length, belief, MEMORY)
    assert chances(tree, belief)[0] == pytest.approx([1, 0.6, 0.2], abs=0.1)


def test_a_head_that_errs_after_it_was_right_is_believed_no_more():
    belief = Belief.empty()
    score = torch.tensor([[0.0, 0.9]]).log()
    tree = tree_of_parents(torch.tensor([[0, 1]]), torch.tensor([[0, 0]]), 1, score=score)
    for said, low, high in ((1, 0.95, 1.0), (40, 0.0, 0.1), (1, 0.9, 1.0)):
        for _ in range(1500):
            paths = tree_accept(tree.tokens, tree.parent, tree.valid, torch.tensor([[said, 41]]), 1)
            tally_paths(tree, all_alike(tree), paths.rows, paths.length, belief, MEMORY)
        assert low <= chances(tree, belief)[0, 1] <= high


def test_heads_are_believed_by_the_temperature_of_requests():
    """What it says likely is what greedy requests say, and what others never do."""
    policy, temperatures = AdaptiveShapes(SHAPE, OPS), (0.0, 0.5, 1.0)
    score = torch.tensor([[0.0, 0.7]]).log()
    tree = tree_of_parents(torch.tensor([[0, 1]]), torch.tensor([[0, 0]]), 1, score=score)
    batch = TreeBatch.stack([tree] * 3)
    requests = [view for each in temperatures for view in asked(tree, each)]
    for turn in range(200):
        policy.plan(requests)
        draws = torch.tensor([[1, 41], [1 if turn % 2 else 40, 41], [40, 41]])
        paths = tree_accept(batch.tokens, batch.parent, batch.valid, draws, 1)
        took = {"verify": 0.01, "grow": 0.01}
        policy.observe(StepReport(3, 6, requests, [], batch, paths, took, 3))
    _, chance = tree_prune(batch, torch.arange(3), policy.belief, torch.zeros(4).double())
    assert chance[:, 1].tolist() == pytest.approx([1.0, 0.5, 0.0], abs=0.1)
    greedy, cool, warm = (policy.line(request) for request in requests)
    assert greedy[0] > cool[0] > warm[0]


def test_durations_tell_features_apart_through_noise_and_hiccups():
    durations, random = Durations(3), np.random.default_rng(0)
    for _ in range(400):
        rows, batch = random.integers(1, 200), random.integers(1, 33)
        noise = random.lognormal(0, 0.1) * (20 if random.random() < 0.01 else 1)
        durations.add((1, rows, batch), (0.01 + 0.0002 * rows + 0.0005 * batch) * noise)
    durations.solve()
    asked = np.array([[1, 1, 1], [1, 64, 8], [1, 190, 30]])
    assert [durations.of(*each) for each in asked] == pytest.approx(
        [0.0107, 0.0268, 0.063], rel=0.1
    )


def test_durations_follow_a_machine_that_becomes_slower():
    durations = Durations(2)
    for slower in (1, 2):
        for step in range(200):
            size = 1 + step % 16
            durations.add((1, size), slower * (0.01 + 0.001 * size))
        durations.solve()
        expected = slower * np.array([0.011, 0.026])
        assert [durations.of(1, 1), durations.of(1, 16)] == pytest.approx(expected, rel=0.1)


def test_what_was_expected_stands_for_what_was_never_seen():
    durations = Durations(2)
    for size in (1, 4, 16, 64):
        durations.expect((1, size), 0.01 + 0.001 * size)
    for _ in range(500):
        durations.add((1, 8), 0.036)
    durations.solve()
    found = durations.of(1, 8), durations.of(1, 9)
    assert found[0] == pytest.approx(0.036, rel=0.02)
    assert found[1] - found[0] == pytest.approx(0.001, rel=0.1)


def test_what_is_seen_is_believed_more_than_what_was_expected():
    """Regression: what rows take was a profile's for good, in which nothing attends and nothing is
    drawn, where the trees of all steps are of about one size; a row took twice as long."""
    costs, random = StepCosts(), np.random.default_rng(0)
    for size in 2 ** np.arange(10):
        costs.expect(int(size), 0.02 + 0.0002 * size)
    tree = random_trees(0, batch=8)
    for step in range(300):
        if step % 8 == 0:
            costs.solve()
        for nodes in (0,) if step % 64 < 8 else (32, 40):
            drafted, rows = 8 * (nodes > 0), 8 + nodes
            seconds = {"verify": float((0.02 + 0.0004 * rows) * random.lognormal(0, 0.1))}
            of_trees = (asked(tree), [], tree if nodes else None, None)
            costs.saw(StepReport(8, rows, *of_trees, seconds, nodes), drafted, drafted, 1)
    costs.solve()
    without, with_nodes = costs.of_forward(8, np.array([0, 40]))
    assert without == pytest.approx(0.0232, rel=0.05)
    assert with_nodes - without == pytest.approx(0.016, rel=0.15)


def test_a_machine_that_becomes_slower_makes_all_rows_dearer_at_once():
    """Though what they take is told by hundreds of times; and plain steps, which nobody looks at
    meanwhile."""
    costs, random, tree, took = StepCosts(), np.random.default_rng(0), random_trees(0, batch=8), {}

    def saw(nodes: int, slower: float) -> None:
        seconds = {"verify": slower * (0.02 + 0.001 * (8 + nodes)), "other": slower * 0.002}
        of_trees = (asked(tree), [], tree if nodes else None, None)
        drafted = 8 * (nodes > 0)
        costs.saw(StepReport(8, 8 + nodes, *of_trees, seconds, nodes), drafted, drafted, 1)

    for slower, steps in ((1, 600), (2, 64)):
        for step in range(steps):
            saw(0 if slower == 1 and step % 64 < 8 else int(random.integers(8, 16)), slower)
        costs.solve()
        took[slower] = *costs.of_forward(8, np.array([0, 56])), costs.of_plain(8)
    assert took[1] == pytest.approx((0.028, 0.084, 0.03), rel=0.03)
    assert took[2] == pytest.approx((0.056, 0.168, 0.06), rel=0.15)


def test_a_batch_whose_forwards_take_longer_than_others_say_is_no_slower_machine():
    """Regression: what 32 requests' trees took beyond what those of 8 had told was the machine's
    pace, at which plain steps were slow, too: trees at 0.8 of their speed were drafted on."""
    costs, random = StepCosts(), np.random.default_rng(0)

    def saw(batch: int, nodes: int, longer: float) -> None:
        seconds = longer * (0.01 + 0.0005 * (batch + nodes)) * random.lognormal(0, 0.1)
        drafted = batch * (nodes > 0)
        report = StepReport(
            batch, batch + nodes, [], [], None, None, {"verify": float(seconds)}, nodes
        )
        costs.saw(report, drafted, drafted, 1)

    for step in range(600):
        saw(8, 0 if step % 64 < 8 else 8 * int(random.integers(2, 6)), longer=1.0)
        if step % 8 == 0:
            costs.solve()
    for step in range(48):
        saw(32, 0 if step < 16 else 96, longer=1.0 if step < 16 else 1.3)
        if step % 8 == 0:
            costs.solve()
    assert costs.of_plain(32) == pytest.approx(0.026, rel=0.07)
    assert costs.of_forward(32, np.array([96]))[0] == pytest.approx(1.3 * 0.074, rel=0.12)


def test_a_machine_whose_seconds_differ_is_compared_at_one_pace():
    """Regression: eight plain steps of a quick second and trees of a slow one were compared as they
    were, and trees that paid were given up for hundreds of steps."""
    costs, random, tree = StepCosts(), np.random.default_rng(0), random_trees(0, batch=8)
    slower, wrong = 1.0, []
    for step in range(4000):
        if random.random() < 1 / 30:
            slower = random.choice((1.0, 1.5, 2.0))
        nodes = 0 if step % 128 < 8 else 8
        seconds = {"verify": slower * (0.02 + 0.001 * (8 + nodes)), "other": slower * 0.002}
        of_trees = (asked(tree), [], tree if nodes else None, None)
        drafted = 8 * (nodes > 0)
        costs.saw(StepReport(8, 8 + nodes, *of_trees, seconds, nodes), drafted, drafted, 1)
        costs.solve()
        if step > 400:
            with_trees = float(costs.of_forward(8, np.array([8]))[0]) + costs.of_rest(8, 1)
            wrong.append(abs(costs.of_plain(8) / with_trees / (0.03 / 0.038) - 1))
    # Compared as they came: 0.13 and 0.33.
    assert np.quantile(wrong, 0.5) < 0.09 and np.quantile(wrong, 0.9) < 0.25


def test_a_rest_that_came_in_a_quick_second_is_one_of_some():
    """Regression: by all that such steps took less, for good, and trees that paid were given up."""
    costs = StepCosts()

    def report(faster: float) -> StepReport:
        seconds = {"verify": 0.02 / faster, "other": 0.002 / faster}
        return StepReport(4, 4, [], [], None, None, seconds)

    for _ in range(40):
        costs.saw(report(1.0), drafted=0, before=0, width=1)
    costs.solve()
    # Three steps of a rest are told of before it is asked whether it goes on.
    assert TRIAL // TOLD + 1 == 3
    for _ in range(3):
        costs.saw_missed(report(1.5), soon=True)
    assert costs.of_plain(4) == pytest.approx(0.022, rel=0.13)
    for _ in range(MISSED):
        costs.saw_missed(report(1.0), soon=True)
    assert costs.of_plain(4) == pytest.approx(0.022, rel=0.05)


@pytest.mark.parametrize("soon", [True, False])
def test_a_rest_takes_what_its_steps_do_that_nobody_is_told_of(soon):
    """Regression: only those count of which the policy is told, which may take longer: plain
    decoding was believed too slow, and trees were drafted beside it."""
    costs = StepCosts()
    step = StepReport(4, 4, [], [], None, None, {"verify": 0.02, "other": 0.002})
    for _ in range(40):
        costs.saw(step, drafted=0, before=0, width=1)
    for _ in range(200):
        costs.solve()
        costs.saw_missed(step, soon, Unasked(4, 14, 56, 60, 11, 11 * 0.019))
    costs.solve()
    assert costs.of_plain(4) == pytest.approx((0.022 + 11 * 0.019) / 12, rel=0.03)
    # Where a prompt was read, or the batch was another one, what followed says nothing of it.
    costs.saw_missed(
        StepReport(4, 99, *[[]] * 2, None, None, {"verify": 0.05}),
        soon,
        Unasked(4, 14, 56, 60, 11, 99.0),
    )
    costs.saw_missed(step, soon, Unasked(3, 14, 42, 42, 11, 99.0))
    costs.solve()
    assert costs.of_plain(4) == pytest.approx((0.022 + 11 * 0.019) / 12, rel=0.03)


@pytest.mark.parametrize("longer", [0.003, 0.012])
def test_what_was_done_beside_the_drafter_is_done_beside_the_forward_of_a_rest(longer):
    """Regression: as a server's HTTP is, of 32 clients on two cores. But for no longer than the
    drafter's part, as the second may be a slow one."""
    costs = StepCosts()
    seconds = {"verify": 0.02, "other": 0.002}
    for _ in range(40):
        followed = StepReport(32, 32, [], [], None, None, seconds | {"extend": 0.005})
        costs.saw(followed, drafted=0, before=0, width=1)
    costs.solve()
    for _ in range(4 * MISSED):
        rested = StepReport(32, 32, [], [], None, None, seconds | {"verify": 0.02 + longer})
        costs.saw_missed(rested, soon=True)
    assert costs.of_plain(32) == pytest.approx(0.022 + min(longer, 0.005), rel=0.01)


def test_one_expected_time_alone_is_laid_to_the_first_feature():
    """As of a target whose first forward takes all the time that the profile has."""
    durations = Durations(3)
    durations.expect((1, 1, 0), 2.0)
    assert durations.each == pytest.approx([2.0, 0.0, 0.0])


def test_nothing_takes_less_than_no_time():
    durations = Durations(3)
    for size in (1, 2, 4, 8, 16):
        durations.add((1, size, 0), 0.1 / size)
    assert (durations.each >= 0).all() and durations.each[2] == 0


CHAIN = TreeShape(1, 3, 3)


def chains(policy: AdaptiveShapes, count: int) -> TreeBatch:
    """Paths, each of whose nodes the head gives 0.9, as deep as the policy wants them."""
    depth = 1
    while depth < CHAIN.depth and policy.deepen(depth, torch.full((count, 1), depth * np.log(0.9))):
        depth += 1
    parent = torch.arange(-1, depth).clamp(min=0).expand(count, -1)
    score = (torch.arange(depth + 1) * np.log(0.9)).float().expand(count, -1)
    return tree_of_parents(parent + 1, parent, depth, score=score)


class ChainSteps:
    """Steps of `batch` requests: seconds that a row adds to a forward of 0.02, and one of a prompt
    to drafting behind it; tokens of prompts that come for each one emitted, read every fourth step,
    the chance of a node to be accepted, how many times as long all takes, seconds that a step
    takes whenever the drafter follows, of drafting a level, and that other work takes, beside the
    drafter or else the forward; requests that can have no tree."""

    def __init__(
        self,
        row: float,
        chance: float,
        prompt: int = 0,
        read: float = 0.0,
        slower: float = 1.0,
        follows: float = 0.0,
        batch: int = 1,
        level: float = 0.001,
        beside: float = 0.0,
        without: int = 0,
    ) -> None:
        self.without = without
        self.follows, self.batch, self.level, self.beside = follows, batch, level, beside
        self.policy, self.random = AdaptiveShapes(CHAIN, OPS), np.random.default_rng(0)
        self.row, self.chance, self.prompt, self.read = row, chance, prompt, read
        self.count, self.emitted, self.slower = 0, 0, slower
        self.tokens = 0

    def step(self) -> tuple[TreeShape | None, float, float]:
        """What was planned, the seconds, and those of plain decoding for as many tokens."""
        self.count += 1
        rests, batch = self.policy.rests(self.batch), self.batch
        able = batch - self.without
        shape, *_ = [None] if rests else self.policy.plan(standing(able))
        tree = paths = None
        prompts, seconds = 0, {}
        if self.count % 4 == 0:
            prompts, self.emitted = self.prompt * self.emitted, 0
        if shape is not None:
            (tree,) = keep(self.policy, [chains(self.policy, able)], batch)
            agrees = torch.from_numpy(self.random.random((able, tree.rows)) < self.chance)
            draws = tree.tokens.roll(-1, dims=1).where(agrees, 0)
            paths = tree_accept(tree.tokens, tree.parent, tree.valid, draws, shape.depth)
            seconds = {"grow": self.level * shape.depth}
        if not rests:
            extend = 0.001 + self.read * prompts + self.beside
            seconds |= {"extend": extend, "other": self.follows}
        rows = batch if tree is None else self.without + int(tree.valid.sum())
        seconds["verify"] = 0.02 + self.row * (rows + prompts) + rests * self.beside
        seconds = {stage: self.slower * each for stage, each in seconds.items()}
        of_trees = asked(tree), [], tree, paths
        self.policy.observe(StepReport(batch, rows + prompts, *of_trees, seconds, rows - batch))
        emitted = batch + (0 if paths is None else int(paths.length.sum()))
        self.emitted += emitted
        self.tokens += emitted
        plain = emitted / batch * (0.02 + self.row * batch + self.beside) + self.row * prompts
        return shape, sum(seconds.values()), self.slower * plain


@pytest.mark.parametrize(("row", "chance", "drafts"), [(0.0005, 0.9, True), (0.01, 0.3, False)])
def test_trees_are_drafted_where_they_pay_and_looked_at_again_now_and_then(row, chance, drafts):
    steps = ChainSteps(row, chance)
    for rows in (1, 2, 4):
        steps.policy.costs.expect(rows, 0.02 + row * rows)
    # Looks that find nothing are far apart.
    count = 1500 if drafts else 6000
    planned, *spent = zip(*(steps.step() for _ in range(count)), strict=True)
    # But for the few steps in which plain decoding is looked at, and the first look at trees.
    first = GOES_ON * TREES + 16
    late = planned[-256:] if drafts else planned[first:]
    if drafts:
        runs = [(shape, len(list(run))) for shape, run in itertools.groupby(late)]
        assert {shape for shape, _ in runs} <= {CHAIN, None}
        assert [length for shape, length in runs if shape is None] in ([], [LOOK_AT_PLAIN])
    else:
        # In whole looks, which took a hundredth of the time, and none longer than chance asks for.
        looks = [len(list(run)) for drafted, run in itertools.groupby(late, key=bool) if drafted]
        assert len(looks) > 1 and TREES <= min(looks[:-1]) <= max(looks) < 2 * TREES
        took, plain = np.sum(spent, axis=1, where=np.arange(count) >= first)
        assert 1 < took / plain < 1.02
    assert steps.policy.account(1).pays is drafts


@pytest.mark.parametrize(("level", "goes_on"), [(0.001, True), (0.02, False)])
def test_a_look_at_trees_that_nearly_pay_goes_on(level, goes_on):
    """As few trees tell little: chance would keep a batch without for long."""
    steps = ChainSteps(0.002, chance=0.35, level=level)
    planned = [steps.step()[0] for _ in range(GOES_ON * TREES + 16)]
    trees = sum(shape is not None for shape in planned)
    assert TREES < trees <= GOES_ON * TREES if goes_on else trees == TREES
    assert not steps.policy.account(1).pays


@pytest.mark.parametrize("batch", [1, 8])
def test_a_head_that_is_never_right_is_given_up_soon_and_looked_at_again(batch):
    """Regression: an engine that knew nothing looked at 50 trees of one client's, with whatever the
    head says as its chances, a sixth of its first few seconds."""
    steps = ChainSteps(0.002, chance=0.0, batch=batch)
    planned = [steps.step()[0] is not None for _ in range(1200)]
    looks = [len(list(run)) for drafted, run in itertools.groupby(planned) if drafted]
    assert len(looks) > 1
    assert max(looks) <= max(HOPELESS // batch, LOOK_AT_TREES)


@pytest.mark.parametrize("batch", [1, 8, 32])
@pytest.mark.parametrize("row", [0.0005, 0.002])
def test_a_head_that_becomes_right_is_found_out(batch, row):
    """Regression: where no node was believed in none was verified, so that nothing was learnt of
    texts of which the head knows more, for good."""
    steps = ChainSteps(row / batch, chance=0.0, batch=batch)
    for _ in range(1000):
        steps.step()
    assert not steps.policy.account(batch).pays
    steps.chance = 0.9
    for _ in range(2 * steps.policy.looks.last.pause):
        steps.step()
    assert steps.policy.account(batch).pays


@pytest.mark.parametrize(("batch", "shorter"), [(32, True), (1, False)])
def test_a_look_is_shorter_that_takes_as_long_as_many_plain_steps(batch, shorter):
    """Regression: of many requests 8 steps with the widest trees were looked at, whatever they
    took. One request's are as many as tell something."""
    steps = ChainSteps(0.001, chance=0.1, batch=batch, level=0.2)
    planned = [steps.step()[0] is not None for _ in range(6000)]
    _, *looks = [len(list(run)) for drafted, run in itertools.groupby(planned) if drafted]
    assert looks
    if shorter:
        # Of four one may be the first with so many rows, which teaches nothing.
        assert max(looks) <= 4 < LOOK_AT_TREES
    else:
        assert min(looks) >= TREES


@pytest.mark.parametrize(("chances", "deeper"), [([1e-4, 1e-3], False), ([1e-4, 0.1], True)])
def test_below_nodes_without_a_chance_no_look_drafts_a_level(chances, deeper):
    """Regression: a look at trees of all levels drafted five of a head that gives all tokens about
    as much."""
    policy = AdaptiveShapes(SHAPE, OPS)
    while policy.plan(standing(2))[0] is None:
        policy.observe(StepReport(2, 2, [], [], None, None, {"verify": 0.02}, 0))
    assert policy.sizes.whole
    assert policy.deepen(1, torch.tensor(chances).log()[:, None]) is deeper


@pytest.mark.parametrize("batch", [1, 3, 8, 32, 256])
def test_a_look_that_goes_on_is_at_so_many_trees_more_in_any_batch(batch):
    """Regression: 32 requests' trees that nearly paid were looked at for 64 steps, as long as 256
    trees of four requests take."""
    at_trees = look_steps(batch, GOES_ON) - LOOK_AT_PLAIN
    assert at_trees == LOOK_AT_TREES or 0 <= GOES_ON * TREES - at_trees * batch < batch
    assert at_trees >= look_steps(batch) - LOOK_AT_PLAIN


def test_whoever_has_just_come_or_is_about_to_go_has_no_tree():
    """Regression: steps were believed to have trees for all, and brought 3 % less than that; then
    beside what fewer requests' trees would bring, and so were believed to bring as much more."""
    steps = ChainSteps(0.0005, chance=0.9, batch=4, without=1)
    for _ in range(600):
        steps.step()
    began, shapes = steps.tokens, []
    took = 0.0
    for _ in range(600):
        shape, seconds, _ = steps.step()
        shapes.append(shape)
        took += seconds
    assert shapes.count(None) < 60
    believed = steps.policy.speeds.with_trees(4, 1)
    assert believed == pytest.approx((steps.tokens - began) / took, rel=0.03)


@pytest.mark.parametrize(("may_emit", "emitted"), [(9, 4), (2, 2)])
def test_tokens_beyond_a_request_s_last_bring_nothing(may_emit, emitted, monkeypatch):
    policy = AdaptiveShapes(CHAIN, OPS)
    policy.plan(standing(1))
    counted = []
    monkeypatch.setattr(policy.speeds, "count", lambda tokens, _: counted.append(tokens))
    tree = chains(policy, 1)
    paths = tree_accept(tree.tokens, tree.parent, tree.valid, tree.tokens.roll(-1, dims=1), 3)
    request = RequestView("0", 99, 100, may_emit, False, True)
    seconds = {"verify": 0.02}
    policy.observe(StepReport(1, 4, [request], [CHAIN], tree, paths, seconds, nodes=3))
    assert counted == [emitted]


def test_behind_a_batch_that_only_passed_by_the_drafter_does_not_follow_for_long():
    """Regression: two steps with half as many requests, whose trees pay, made 32 steps of a batch
    in a rest as slow as steps that the drafter follows."""
    steps = DearTrees()
    while steps.step(32) != "rest":
        continue
    eight = steps.policy.looks.by_power[3] = Looks(plans=look_steps(8, GOES_ON))
    eight.judge = lambda *_: None
    assert [steps.step(8) for _ in range(2)] == ["none"] * 2
    assert [steps.step(32) for _ in range(4)] == ["none"] * 2 + ["rest"] * 2
    # Regression: the first of many requests that come together, drafted for alone, made all others'
    # prompts be read for one step more.
    assert [steps.step(8)] + [steps.step(32) for _ in range(2)] == ["none"] * 2 + ["rest"]
    # One that was drafted for at length may be again.
    assert {steps.step(8) for _ in range(FOLLOWED + 4)} == {"none", "trees"}
    assert [steps.step(32) for _ in range(FOLLOWED + 2)] == ["none"] * (FOLLOWED + 1) + ["rest"]


@pytest.mark.parametrize(("level", "soonest"), [(0.001, 256), (0.02, 4096)])
def test_where_trees_do_not_pay_a_larger_batch_is_not_looked_at_at_once(level, soonest):
    """Regression: a wave of requests paid for a look at each doubling. Where they nearly pay that
    is no long time, as chance may have had it so."""
    steps = ChainSteps(0.0023, chance=0.35, level=level)
    planned = [steps.step()[0] for _ in range(GOES_ON * TREES + 64)]
    # Regression: where a look goes on with one request, another one began before its end.
    assert not any(planned[-40:])
    rested = [steps.policy.rests(4) for _ in range(soonest + 1)]
    assert soonest - 32 < rested.index(False) <= soonest


def test_no_rest_is_tried_while_a_look_goes_on():
    """Regression: one that began in the middle of a look lasted as long as the pause behind one:
    32 requests whose trees pay were not drafted for in 256 steps."""
    steps = ChainSteps(0.002 / 32, chance=0.41, batch=32)
    planned = [steps.step()[0] for _ in range(400)]
    without = [len(list(run)) for drafted, run in itertools.groupby(planned, bool) if not drafted]
    # The first look at plain steps, and a rest, behind which the drafter follows first.
    assert TRIAL < max(without) <= TRIAL + FOLLOWED + 2
    assert steps.policy.account(32).pays


def test_looks_in_vain_are_ever_more_seldom_and_soon_again_once_trees_pay():
    """Regression: plain steps that were slow when they were looked at make what a look loses next
    to nothing, and a look was due every 256 steps for good."""
    looks = Looks()

    def look(rate: float) -> int:
        """After how many plans the next one begins."""
        looks.plans, looks.trees = 72, 256
        looks.judge(rate, 100.0, drifted=False)
        looks.end(plain_s=0.01)
        return looks.pause - looks.plans

    found = [look(rate=95.0) for _ in range(5)]
    assert found == [256, 512, 1024, 2048, 2048]
    look(rate=120.0)
    assert look(rate=95.0) == 256


def test_what_one_look_found_the_next_one_need_not_find_again():
    """Regression: each look began as if nothing were known, and took hundreds of trees where these
    are a tenth slower, time and again."""
    looks = Looks(pays=False, pause=64)

    def near(trees: int) -> bool:
        looks.trees += trees
        looks.judge(90.0, 100.0, drifted=False)
        return looks.near

    # A few hundred trees where these paid of late, in what may be a bad moment of the machine.
    assert near(TREES) and near(3 * TREES) and not near(4 * TREES)
    looks.end(plain_s=0.01)
    looks.plans = looks.pause
    assert looks.begin() and not near(TREES)


def test_a_few_unlucky_trees_end_no_look():
    """Regression: what steps kept of a promise was believed from the first few on, and a head that
    gives half as much again was rested from for hundreds of steps."""
    steps = ChainSteps(0.002, chance=0.7)
    for step in range(GOES_ON * TREES + 16):
        steps.chance = 0.0 if step in range(30, 36) else 0.7
        steps.step()
        assert steps.policy.account(1).pays


@pytest.mark.parametrize("faster", [2.0, 4.0])
def test_a_machine_that_becomes_faster_is_seen_while_trees_are_drafted(faster):
    """As plain steps are few then; on the faster one rows are dear, and trees do not pay."""
    steps = ChainSteps(0.0005, 0.9, slower=faster)
    for _ in range(1000):
        steps.step()
    assert steps.policy.account(1).pays
    steps.slower, steps.row, steps.chance = 1.0, 0.01, 0.3
    shapes, took, plain = zip(*(steps.step() for _ in range(1000)), strict=True)
    # Looks at plain steps come first; one at trees, after the shortest pause, is among these.
    assert sum(shape is not None for shape in shapes) < 500
    assert sum(took[700:]) < 1.02 * sum(plain[700:])


@pytest.mark.parametrize(("follows", "pays"), [(0.0, True), (0.002, False)])
def test_trees_are_compared_with_steps_that_nobody_follows(follows, pays):
    """Trees at about 1.07 of plain decoding's speed, if that is followed in the latter case."""
    steps = ChainSteps(0.002, 0.37, follows=follows)
    late = [steps.step() for _ in range(3000 if pays else 6000)][-2000:]
    shapes, took, plain = zip(*late, strict=True)
    assert (shapes.count(None) < len(late) / 2) is pays
    # What looks at trees take that nearly pay.
    assert sum(took) < 1.02 * sum(plain)


def test_trees_are_drafted_that_pay_by_what_a_rest_takes_longer_alone():
    """Regression: once it was known, nobody asked whether trees pay before the pause was over."""
    steps = ChainSteps(0.002, 0.45, beside=0.005)
    while steps.policy.costs.missed < TRIAL:
        steps.step()
    shapes, took, plain = zip(*(steps.step() for _ in range(400)), strict=True)
    assert shapes.count(None) < 100
    assert sum(took[FOLLOWED:]) < 0.95 * sum(plain[FOLLOWED:])


@pytest.mark.parametrize(("read", "pays"), [(0.0, True), (0.001, True), (0.004, False)])
def test_trees_have_to_pay_for_the_prompts_that_the_head_reads_behind_them(read, pays):
    """Trees of twice plain decoding's speed, which bring a token in half of its 0.022 seconds, and
    five tokens of prompts for each one; `read`: seconds that the head takes for one of these."""
    steps = ChainSteps(0.002, 0.9, prompt=5, read=read)
    late = [steps.step() for _ in range(2000)][-500:]
    assert steps.policy.account(1).pays is pays
    shapes, took, plain = zip(*late, strict=True)
    assert sum(shape is not None for shape in shapes) > 400 if pays else shapes.count(None) > 400
    assert sum(took) < 1.02 * sum(plain)
    costs = steps.policy.costs
    assert costs.of_prompt_row(trees=True) == pytest.approx(0.002 + read, rel=0.1)


def test_what_is_believed_of_a_batch_can_be_asked():
    policy = AdaptiveShapes(CHAIN, OPS)
    assert policy.account(4) == Account(False, *[0.0] * 7)
    for _ in range(100):
        (shape,) = policy.plan(standing(1))
        seconds, tree, paths, rows = {"verify": 0.02}, None, None, 1
        if shape is not None:
            (tree,) = keep(policy, [chains(policy, 1)], 1)
            paths = tree_accept(tree.tokens, tree.parent, tree.valid, tree.tokens.roll(-1, 1), 3)
            rows = int(tree.valid.sum())
            seconds |= {"extend": 0.004, "grow": 0.001}
        policy.observe(StepReport(1, rows, asked(tree), [], tree, paths, seconds, rows - 1))
    found = policy.account(1)
    assert found.pays and found.trees_per_s > found.plain_per_s == pytest.approx(50, rel=0.01)
    assert found.forward_s == pytest.approx(0.02, rel=0.05) and found.row_s < 0.001
    assert found.rest_s == pytest.approx(0.005, rel=0.1)
