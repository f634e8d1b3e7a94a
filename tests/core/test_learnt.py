# SPDX-License-Identifier: Apache-2.0
"""What adaptive trees learnt goes from one engine's policy to the next one's."""

import copy
import json

import numpy as np
import pytest

from vllm_eagle_pangu.core.adaptive import AdaptiveShapes
from vllm_eagle_pangu.core.costs import HANDED_ON
from vllm_eagle_pangu.core.learnt import take, told
from vllm_eagle_pangu.core.looks import FOLLOWED, GOES_ON, LOOK_AT_PLAIN, TREES

from .test_adaptive import CHAIN, OPS, ChainSteps, OnADevice


def handed_on(policy: AdaptiveShapes) -> dict:
    """As it comes out of a file."""
    return json.loads(json.dumps(policy.learnt(), allow_nan=False))


def chain_steps(learnt: dict | None = None, **how) -> ChainSteps:
    steps = ChainSteps(**how)
    if learnt is not None:
        steps.policy.resume(learnt)
    return steps


PAYS = {"row": 0.0005, "chance": 0.9}
DOES_NOT = {"row": 0.01, "chance": 0.3}


@pytest.mark.parametrize(("how", "drafts"), [(PAYS, True), (DOES_NOT, False)])
def test_the_next_engine_needs_no_first_look(how, drafts):
    first = chain_steps(**how)
    at_first = [first.step()[0] for _ in range(GOES_ON * TREES + 16)]
    # As a look begins: plain steps, then trees, whatever they bring.
    assert at_first[:LOOK_AT_PLAIN] == [None] * LOOK_AT_PLAIN
    assert all(at_first[LOOK_AT_PLAIN : LOOK_AT_PLAIN + TREES])
    learnt = handed_on(first.policy)
    second = chain_steps(learnt, **how)
    shapes, took, plain = zip(*(second.step() for _ in range(64)), strict=True)
    of_trees = sum(shape is not None for shape in shapes)
    assert of_trees >= 64 - LOOK_AT_PLAIN if drafts else of_trees == 0
    assert sum(took) < (0.7 if drafts else 1.001) * sum(plain)


def test_what_was_learnt_on_a_device_is_handed_on_too():
    first = OnADevice(0.0005, row=0.0001, sizes=(4, 8, 16, 32))
    for _ in range(400):
        first.step()
    second = OnADevice(0.0005, row=0.0001, sizes=(4, 8, 16, 32))
    second.policy.resume(handed_on(first.policy))
    late = [shape for shape, _ in [second.step() for _ in range(40)] if shape]
    assert [shape.depth for shape in late].count(3) > 25
    then, now = (each.policy.costs.of_level(4) for each in (first, second))
    assert now == pytest.approx(then, rel=0.2)


def test_an_engine_that_starts_often_forgets_nothing():
    steps = chain_steps(**PAYS)
    for _ in range(300):
        steps.step()
    learnt = once = handed_on(steps.policy)
    for _ in range(5):
        policy = AdaptiveShapes(CHAIN, OPS)
        policy.resume(learnt)
        learnt, before = handed_on(policy), learnt
        once = learnt if before is once else once
    assert learnt == handed_on(policy)
    costs, known = policy.costs, steps.policy.costs
    assert costs.of_plain(1) == pytest.approx(known.of_plain(1), rel=0.05)
    assert costs.forward.known == HANDED_ON < known.forward.known


def test_a_machine_that_became_another_one_is_believed_soon():
    """Where a row takes as long as half a forward now, and the head is right less often, trees that
    paid do not."""
    first = chain_steps(**PAYS)
    for _ in range(300):
        first.step()
    second = chain_steps(handed_on(first.policy), **DOES_NOT)
    _, took, plain = zip(*(second.step() for _ in range(1200)), strict=True)
    assert not second.policy.account(1).pays
    assert sum(took[700:]) < 1.02 * sum(plain[700:])


def test_a_head_that_became_another_one_is_believed_soon():
    first = chain_steps(**DOES_NOT)
    while first.policy.account(1).pays or first.count < GOES_ON * TREES:
        first.step()
    second = chain_steps(handed_on(first.policy), **PAYS)
    # Till the next look, and what that takes.
    shapes = [second.step()[0] for _ in range(4096 + FOLLOWED + 256)]
    assert all(shapes[-64:])


def _of_learnt(change) -> dict:
    steps = chain_steps(**PAYS)
    for _ in range(100):
        steps.step()
    learnt = handed_on(steps.policy)
    change(learnt)
    return learnt


@pytest.mark.parametrize(
    "change",
    [
        lambda learnt: learnt.pop("speeds"),
        lambda learnt: learnt.update(more=1),
        lambda learnt: learnt["speeds"]["costs"].pop("pace"),
        lambda learnt: learnt["speeds"]["trees"].update(nodes=[[0.5]]),
        lambda learnt: learnt["speeds"]["kept"].update(late=[1.0]),
        lambda learnt: learnt["speeds"]["costs"]["plain"].update(known=None),
        lambda learnt: learnt["speeds"]["costs"]["plain"].update(_seen=float("nan")),
        lambda learnt: learnt["belief"].pop(),
        lambda learnt: learnt.update(_size=[3, 1]),
        lambda learnt: learnt.update(_size=[1, 4]),
        lambda learnt: learnt.update(_looks_of=[[0, [1, 2]]]),
        lambda learnt: learnt.update(_looks_of=7),
    ],
)
def test_what_no_policy_learns_is_refused_and_changes_nothing(change):
    policy = AdaptiveShapes(CHAIN, OPS)
    before = copy.deepcopy(told(policy))
    with pytest.raises(ValueError, match=r"learn|trees|numbers?|argument"):
        policy.resume(_of_learnt(change))
    assert told(policy) == before


def test_trees_of_another_shape_are_refused():
    learnt = _of_learnt(lambda _: None)
    policy = AdaptiveShapes(type(CHAIN)(1, 2, 2), OPS)
    with pytest.raises(ValueError, match=r"finite numbers|are not of"):
        policy.resume(learnt)


def test_numbers_stay_what_they_were():
    class Learns:
        LEARNT = ("count", "share", "known", "table", "pairs")

        def __init__(self) -> None:
            self.count, self.share, self.known = 3, 0.5, True
            self.table, self.pairs = np.eye(2), {(True, 1): (0.25, 4)}

    class Blank(Learns):
        def __init__(self) -> None:
            self.count, self.share, self.known = 0, 0.0, False
            self.table, self.pairs = np.zeros((2, 2)), {}

    blank = Blank()
    take(blank, json.loads(json.dumps(told(Learns()))))
    assert (blank.count, blank.share, blank.known) == (3, 0.5, True)
    assert np.array_equal(blank.table, np.eye(2)) and blank.pairs == {(True, 1): (0.25, 4)}
