# SPDX-License-Identifier: Apache-2.0
"""What plugs into the step may be exchanged and no token changes: policy, drafter, observer."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch

from vllm_eagle_pangu.core.costs import StepCosts
from vllm_eagle_pangu.core.policy import TreePolicy
from vllm_eagle_pangu.core.prices import row_counts
from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.engine import forward_profile
from vllm_eagle_pangu.step.accept import Accepted
from vllm_eagle_pangu.step.commit import Committed
from vllm_eagle_pangu.step.drafter import Drafter
from vllm_eagle_pangu.step.grow import Drafted, DraftedTrees
from vllm_eagle_pangu.step.place import Placed
from vllm_eagle_pangu.step.stages import Observer
from vllm_eagle_pangu.step.view import BatchView

from ..trees import tree_of_parents

pytestmark = pytest.mark.engine

SHAPES = [TreeShape(*shape) for shape in ((4, 4, 16), (1, 2, 2), (3, 2, 6), (2, 4, 9), (1, 1, 1))]
PROMPTS = [list(b"the quick brown fox"), list(b"over"), list(range(40, 140)), [3, 4], [5] * 60]
SMALL = {"max_model_len": 256, "max_num_batched_tokens": 64, "max_num_seqs": 3}
TOKENS = 30


@pytest.fixture(scope="module")
def expected(engine, tiny_pangu):
    """What the target decodes alone."""
    with engine(tiny_pangu, None, **SMALL) as plain:
        return plain.generate(PROMPTS, max_tokens=TOKENS)


class RandomShapes(TreePolicy):
    """A `TreePolicy`: another shape for each request and step, none among them."""

    def __init__(self) -> None:
        self.random = random.Random(0)
        self.planned = []
        self.reports = []

    def plan(self, requests):
        self.planned.append([self.random.choice([None, *SHAPES]) for _ in requests])
        return self.planned[-1]

    def deepen(self, level, score):
        return self.random.random() < 0.8

    def keep(self, trees, requests, batch):
        return trees

    def observe(self, report):
        accepted = [] if report.paths is None else report.paths.length.tolist()
        self.reports.append((report, accepted))


def test_a_policy_may_choose_another_shape_for_each_request(
    engine, tiny_pangu, tiny_head, tree_config_of, expected
):
    spec = tree_config_of(tiny_head, (4, 4, 16), verify_mode="reference")
    with engine(tiny_pangu, spec, **SMALL) as trees:
        policy = trees.runner.step.policy = RandomShapes()
        assert trees.generate(PROMPTS, max_tokens=TOKENS) == expected
    assert {shape for plan in policy.planned for shape in plan} == {None, *SHAPES}
    assert any(len({*plan} - {None}) > 1 for plan in policy.planned), "several shapes in a step"
    for report, accepted in policy.reports:
        assert len(report.requests) == len(report.shapes) == len(accepted) <= report.batch
        for shape, nodes in zip(report.shapes, accepted, strict=True):
            assert 0 <= nodes <= shape.depth
        assert report.rows >= report.batch and report.seconds["verify"] > 0
    assert sum(sum(accepted) for _, accepted in policy.reports) > TOKENS


class Sometimes(TreePolicy):
    """A `TreePolicy` that drafts every seventh time, and verifies nothing of it."""

    def __init__(self, every: int) -> None:
        self.every, self.turn = every, 0

    def plan(self, requests):
        self.turn += 1
        return [SHAPES[0] if self.turn % self.every == 0 else None for _ in requests]

    def deepen(self, level, score):
        return True

    def keep(self, trees, requests, batch):
        return [tree.cut(torch.zeros(tree.batch_size, dtype=torch.int64)) for tree in trees]

    def observe(self, report):
        pass


class Listener(TreePolicy):
    """A `TreePolicy` that is told of each level and keeps whole trees, in which all candidates are,
    and compares: the levels that were told of, with how many trees."""

    def __init__(self) -> None:
        self.told, self.agreed = {}, []

    def plan(self, requests):
        return [TreeShape(2, 3, 10)] * len(requests)

    def deepen(self, level, score):
        self.told[level] = score.clone()
        return True

    def keep(self, trees, requests, batch):
        (tree,) = trees
        for level, score in self.told.items():
            of_level = tree.score.where(tree.depth == level, float("-inf"))
            assert torch.equal(score, of_level.topk(2).values)
            self.agreed.append((level, len(score)))
        self.told = {}
        return trees


def test_a_policy_is_told_what_the_trees_score(
    engine, tiny_pangu, tiny_head, tree_config_of, expected
):
    """How deep trees are is decided by the log-probabilities of whole paths that they bear."""
    spec = tree_config_of(tiny_head, (2, 3, 10))
    with engine(tiny_pangu, spec, **SMALL) as trees:
        policy = trees.runner.step.policy = Listener()
        assert trees.generate(PROMPTS, max_tokens=TOKENS) == expected
    assert {level for level, _ in policy.agreed} == {1, 2}
    assert max(count for _, count in policy.agreed) > 1


class Notebook(Drafter):
    """A `Drafter` that writes down what another one drafts, by prompt and length of its text, as it
    was before the step: two runs compare only where no node is accepted."""

    def __init__(self, drafter, first) -> None:
        self.drafter, self.first, self.view, self.trees = drafter, first, None, {}

    def requests(self, accepted):
        return self.drafter.requests(accepted)

    def extend(self, accepted, target, requests):
        self.view = accepted.placed.view
        return self.drafter.extend(accepted, target, requests)

    def put_off(self, accepted, target):
        self.drafter.put_off(accepted, target)

    @property
    def behind(self):
        return self.drafter.behind

    def grow(self, state, plan, deepen):
        grown = self.drafter.grow(state, plan, deepen)
        for trees in grown.trees:
            for row, request in enumerate(trees.requests):
                view = self.view.requests[request]
                prompt = int(view.id.split("-")[0]) - self.first
                drafted = trees.tree.score[row], trees.tree.tokens[row]
                self.trees[prompt, view.length] = drafted
        return grown


def test_what_was_put_off_is_read_before_the_next_tree(
    engine, tiny_pangu, tiny_head, tree_config_of, expected, monkeypatch
):
    """Trees after seven tokens that the head did not read are those of a head that read them."""
    spec = tree_config_of(tiny_head, (4, 4, 16))
    with engine(tiny_pangu, spec, **SMALL) as trees:
        drafter, drafted = trees.runner.step.drafter, {}
        for turn, every in enumerate((1, 7, 23)):
            # Read at once, a few steps at once, and only when a tree is wanted.
            monkeypatch.setattr("vllm_eagle_pangu.step.drafter.ENOUGH", 20 * turn * turn)
            notebook = trees.runner.step.drafter = Notebook(drafter, turn * len(PROMPTS))
            trees.runner.step.policy = Sometimes(every)
            assert trees.generate(PROMPTS, max_tokens=TOKENS) == expected
            drafted[every] = notebook.trees
    for every in (7, 23):
        assert len(drafted[every]) >= len(PROMPTS)
        for prompt_and_length, (scores, tokens) in drafted[every].items():
            as_read, the_same = drafted[1][prompt_and_length]
            assert torch.equal(tokens, the_same)
            torch.testing.assert_close(scores, as_read)


class GivesWay(Sometimes):
    """Drafts every time, but behind steps for which more requests wait."""

    def __init__(self) -> None:
        super().__init__(every=1)
        self.asked, self.late = [], []

    def puts_off(self, requests, new, waiting):
        self.asked.append((len(requests), new, waiting))
        return waiting > 0

    def observe(self, report):
        self.late.append(report.late)


@pytest.mark.parametrize("many", [0, 2048])
def test_trees_that_gave_way_to_prompts_are_drafted_as_if_they_had_not(
    engine, tiny_pangu, tiny_head, tree_config_of, expected, monkeypatch, many
):
    """Whether the head reads all of it later, or as it comes."""
    monkeypatch.setattr("vllm_eagle_pangu.step.drafter.MANY", many)
    spec = tree_config_of(tiny_head, (4, 4, 16))
    with engine(tiny_pangu, spec, **SMALL | {"max_num_seqs": 5}) as trees:
        drafter, drafted = trees.runner.step.drafter, []
        for turn, policy in enumerate((Sometimes(1), GivesWay())):
            notebook = trees.runner.step.drafter = Notebook(drafter, turn * len(PROMPTS))
            trees.runner.step.policy = policy
            assert trees.generate(PROMPTS, max_tokens=TOKENS) == expected
            drafted.append(notebook.trees)
    # A prompt is read in part and two are not begun, then one is read in part.
    assert policy.asked[:3] == [(3, 3, 3), (5, 2, 1), (5, 0, 0)]
    assert not any(waiting for _, _, waiting in policy.asked[2:])
    # What was read later: in the third step, with what was left of the turn before.
    later = [max(rows, 0) for rows in policy.late[:3]]
    assert later == [64 * (many > 0), 64 * (many > 0), 0]
    assert not many or policy.late[2] <= -128
    at_once, later = drafted
    assert len(later) > 10 and not set(later) >= set(at_once)
    for prompt_and_length, (scores, tokens) in later.items():
        as_read, the_same = at_once[prompt_and_length]
        assert torch.equal(tokens, the_same)
        torch.testing.assert_close(scores, as_read)


class Costs(StepCosts):
    """A forward takes 1 and what each row adds; the rest is free."""

    def __init__(self, row: float) -> None:
        super().__init__()
        self.row = row

    def solve(self):
        pass

    def of_plain(self, batch):
        return 1 + self.row * batch

    def of_forward(self, batch, nodes):
        return 1 + self.row * (batch + nodes)

    def saw(self, report, drafted, before, width):
        return 1 + self.row * report.rows


def test_trees_follow_what_rows_cost_and_no_token_changes(
    engine, tiny_pangu, tiny_head, tree_config_of, expected
):
    spec = tree_config_of(tiny_head, (4, 4, 16), tree_policy="adaptive", verify_mode="reference")
    verified = {}
    with engine(tiny_pangu, spec, **SMALL) as trees:
        policy = trees.runner.step.policy
        for row in (0.0, 0.1, 100.0):
            policy.speeds.costs = Costs(row)
            policy._prices_of.clear()
            counted = Counter()
            trees.runner.stages.observers = (counted,)
            assert trees.generate(PROMPTS, max_tokens=TOKENS) == expected
            verified[row], looked_at = counted.nodes, counted.most
    assert verified[0.0] > 2 * verified[0.1] > 0
    # The first look goes on, which verifies as many as there are requests, whatever they cost.
    assert looked_at <= 1


def test_numbers_of_rows_that_trees_have_ran_before_the_first_step(
    engine, tiny_pangu, tiny_head, tree_config_of, monkeypatch
):
    """As far as time allows: on a CPU the first forward of each takes several times as long."""
    ran, run = [], forward_profile._run

    def noted(runner, rows):
        ran.append(rows)
        return run(runner, rows)

    monkeypatch.setattr(forward_profile, "_run", noted)
    spec = tree_config_of(tiny_head, (4, 4, 16), tree_policy="adaptive")
    with engine(tiny_pangu, spec, **SMALL) as trees:
        costs = trees.runner.step.policy.costs
        counts = row_counts(trees.runner.step_memory.target_logits[0])
    assert counts[:17] == [*range(1, 17), 24] and counts[-1] > 40
    once = ran.index(1, 1)
    assert ran[:once] == counts[:once] and {*ran[once:]} <= {1, 4, 16, 64}
    assert costs.forward.each[0] > 0


class Counter(Observer):
    """Nodes that were verified, and the most in one step, for each of its requests."""

    nodes, most = 0, 0.0

    def found(self, result):
        if isinstance(result, Placed) and result.trees is not None:
            found = sum(result.trees.nodes)
            self.nodes += found
            self.most = max(self.most, found / result.view.batch_size)


@dataclass(frozen=True)
class Histories:
    """What the copying drafter keeps between its stages."""

    view: BatchView
    requests: Sequence[int]
    tokens: Sequence[list[int]]


class CopyFromText(Drafter):
    """A `Drafter` without a head: what followed the last time the root's token occurred."""

    def __init__(self) -> None:
        self.accepted = 0

    def requests(self, accepted):
        self.accepted += int(accepted.paths.length.sum())
        return [
            place
            for place, request in enumerate(accepted.placed.view.requests)
            if not request.is_partial and request.may_draft and request.may_emit > 8
        ]

    def extend(self, accepted, target, requests):
        view = accepted.placed.view
        if not requests:
            return None
        emitted = accepted.paths.output.tolist()
        tokens = [
            [
                *view.tokens[place, : view.requests[place].length].tolist(),
                *(token for token in emitted[place] if token >= 0),
            ]
            for place in requests
        ]
        return Histories(view, requests, tokens)

    def grow(self, state, plan, deepen):
        drafted = []
        for request, tokens, shape in zip(state.requests, state.tokens, plan, strict=True):
            copied = copy_of(tokens, shape.depth)
            if copied:
                row = torch.tensor([[tokens[-1], *copied]])
                parent = torch.arange(-1, len(copied)).clamp(min=0)[None]
                tree = tree_of_parents(row, parent, shape.depth)
                drafted.append(DraftedTrees(tree, [request], shape))
        return Drafted(drafted)


def copy_of(tokens: list[int], most: int) -> list[int]:
    before = [place for place, token in enumerate(tokens[:-1]) if token == tokens[-1]]
    return tokens[before[-1] + 1 :][:most] if before else []


def test_a_drafter_may_copy_from_the_text(engine, pair, heldout_prompts, tree_config_of):
    prompts = sorted(heldout_prompts, key=len)[20:26]
    with engine(pair[0], None, max_num_seqs=4) as plain:
        expected = plain.generate(prompts, max_tokens=TOKENS)
    spec = tree_config_of(pair[1], (4, 4, 16), verify_mode="reference")
    with engine(pair[0], spec, max_num_seqs=4) as trees:
        drafter = trees.runner.step.drafter = CopyFromText()
        assert trees.generate(prompts, max_tokens=TOKENS) == expected
    assert drafter.accepted > TOKENS


class Diary(Observer):
    """Writes down everything that it is told."""

    def __init__(self) -> None:
        self.steps, self.requests = [], []

    def began(self, started, finished):
        self.steps.append([])
        self.requests += started

    def entered(self, stage):
        if self.steps:
            self.steps[-1].append(stage)

    def found(self, result):
        self.steps[-1].append(type(result))


def test_an_observer_sees_every_stage_in_order(
    engine, tiny_pangu, tiny_head, tree_config_of, expected
):
    with engine(tiny_pangu, tree_config_of(tiny_head, (4, 4, 16)), **SMALL) as trees:
        diary = Diary()
        trees.runner.stages.observers += (diary,)
        assert trees.generate(PROMPTS, max_tokens=TOKENS) == expected
        seconds = dict(trees.runner.stages.times)
    assert len(set(diary.requests)) == len(PROMPTS)
    full = ["place", Placed, "verify", "draw", "accept", Accepted, "commit", Committed]
    full += ["extend", "grow", Drafted]
    whole = [step for step in diary.steps if Drafted in step]
    assert len(whole) > TOKENS / 4
    for step in whole:
        mattering = [entry for entry in step if entry not in ("prepare", "other", "between")]
        # Trees are placed in two goes, the second one beside the attention metadata.
        assert [e for i, e in enumerate(mattering) if i == 0 or e != "place"] == full
        assert step[0] == "other" and step[-1] == "between"
    assert min(seconds.values()) >= 0 and seconds["verify"] > 0
