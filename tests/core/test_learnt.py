# SPDX-License-Identifier: Apache-2.0
"""What adaptive trees learnt goes from one engine's policy to the next one's."""

import copy
import json
from typing import ClassVar

import numpy as np
import pytest

from vllm_eagle_pangu.core.adaptive import AdaptiveShapes
from vllm_eagle_pangu.core.costs import HANDED_ON
from vllm_eagle_pangu.core.durations import Durations
from vllm_eagle_pangu.core.learnt import take, told
from vllm_eagle_pangu.core.looks import FOLLOWED, GOES_ON, LOOK_AT_PLAIN, SETTLED, TREES
from vllm_eagle_pangu.core.rest import TOLD

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
    first = chain_steps(**PAYS)
    for _ in range(300):
        first.step()
    learnt, costs = [handed_on(first.policy)], []
    for _ in range(5):
        policy = AdaptiveShapes(CHAIN, OPS)
        policy.resume(learnt[-1])
        learnt.append(handed_on(policy))
        costs.append(policy.costs)
    assert learnt[0] != learnt[1] == learnt[-1]
    known = first.policy.costs
    assert costs[-1].of_plain(1) == pytest.approx(known.of_plain(1), rel=0.05)
    assert costs[-1].forward.known == HANDED_ON < known.forward.known


def test_a_rest_goes_on_and_one_that_was_tried_does_not():
    first = chain_steps(**DOES_NOT)
    while not first.policy.rests(1):
        first.step()
    second = chain_steps(handed_on(first.policy), **DOES_NOT)
    assert second.policy.rests(1) == TOLD
    tried = chain_steps(**PAYS)
    for _ in range(300):
        tried.step()
    looks = tried.policy.looks.by_power[0]
    looks.unsure, looks.trees = True, SETTLED
    assert looks.try_a_rest(1, tried.policy._plans) and not looks.pays
    assert chain_steps(handed_on(tried.policy), **PAYS).policy.account(1).pays


def test_a_look_goes_on_where_it_was():
    first = chain_steps(**PAYS)
    for _ in range(LOOK_AT_PLAIN + 5):
        first.step()
    second = chain_steps(handed_on(first.policy), **PAYS)
    shapes = [second.step()[0] for _ in range(TREES)]
    assert all(shapes) and second.policy.looks.by_power[0].trees == TREES + 5


def test_long_prompts_at_first_are_not_what_is_read_beside_all_trees():
    """As much of prompts as of late in the last engine."""
    how = PAYS | {"prompt": 1, "read": 0.004}
    first = chain_steps(**how)
    for _ in range(300):
        first.step()
    second = chain_steps(handed_on(first.policy), **how)
    second.policy.speeds.count(1, 60)
    shapes = [second.step()[0] for _ in range(64)]
    assert sum(shape is not None for shape in shapes) >= 64 - LOOK_AT_PLAIN


def test_a_machine_that_became_slower_is_so_at_once_for_the_next_engine():
    first = chain_steps(**PAYS)
    for step in range(340):
        first.slower = 2.0 if step > 300 else 1.0
        first.step()
    second = chain_steps(handed_on(first.policy), **PAYS)
    then, now = (each.policy.costs.of_plain(1) for each in (first, second))
    assert now == pytest.approx(then, rel=0.02) and now > 0.025


def test_what_counts_less_gives_way_sooner():
    parts = [Durations(1) for _ in range(2)]
    for seconds, times in ((1.0, 100), (1.5, 4)):
        for part in parts:
            for _ in range(times):
                part.add((1,), seconds)
            part.solve()
        if seconds == 1.0:
            parts[1].believe_less(4)
    late, soon = (part.of(1) for part in parts)
    assert 0 < 3 * (late - 1.0) < soon - 1.0 < 0.5


@pytest.mark.parametrize("slower", [0.6, 1.0, 1.6])
def test_a_machine_of_another_pace_is_followed(slower):
    """All takes so many times as long where the second engine starts."""
    first = chain_steps(**PAYS)
    for _ in range(600):
        first.step()
    second = chain_steps(handed_on(first.policy), **PAYS, slower=slower)
    shapes, took, plain = zip(*(second.step() for _ in range(400)), strict=True)
    assert sum(shape is not None for shape in shapes) > 300
    assert sum(took) < 0.7 * sum(plain)


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


def test_a_head_that_became_another_one_is_found_at_the_next_look():
    first = chain_steps(**DOES_NOT)
    for _ in range(GOES_ON * TREES + 16):
        first.step()
    assert not first.policy.account(1).pays
    second = chain_steps(handed_on(first.policy), **PAYS)
    rest = first.policy.looks.by_power[0].pause
    shapes = [second.step()[0] for _ in range(rest + FOLLOWED + 64)]
    # But for another look at plain steps.
    assert sum(map(bool, shapes[-32:])) >= 32 - LOOK_AT_PLAIN


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
        lambda learnt: learnt["speeds"]["costs"]["plain"].update(known=float("inf")),
        lambda learnt: learnt["speeds"]["costs"]["plain"]["_seen"][0].__setitem__(0, float("nan")),
        lambda learnt: learnt["speeds"]["costs"].update(_shares=[[0, None]]),
        lambda learnt: learnt["belief"].pop(),
        lambda learnt: learnt["sizes"].update(best=[3, 1]),
        lambda learnt: learnt["sizes"].update(best=[1, 4]),
        lambda learnt: learnt["sizes"].update(best=None),
        lambda learnt: learnt.update(sizes=[[1, 3]]),
        lambda learnt: learnt.update(_plans="5"),
        lambda learnt: learnt["looks"].update(by_power=[[0, [1, 2]]]),
        lambda learnt: learnt["looks"].update(by_power=7),
        lambda learnt: learnt.update(looks=7),
    ],
)
def test_what_no_policy_learns_is_refused_and_changes_nothing(change):
    policy = AdaptiveShapes(CHAIN, OPS)
    before = copy.deepcopy(told(policy))
    # Where the disk, or somebody, changed what was written.
    with pytest.raises(ValueError):
        policy.resume(_of_learnt(change))
    assert told(policy) == before


def test_trees_of_another_shape_are_refused():
    learnt = _of_learnt(lambda _: None)
    policy = AdaptiveShapes(type(CHAIN)(1, 2, 2), OPS)
    with pytest.raises(ValueError, match=r"are not of trees up to"):
        policy.resume(learnt)


def test_numbers_stay_what_they_were():
    class Learns:
        LEARNT = ("count", "share", "known", "table", "pairs")
        ITEMS: ClassVar = {"pairs": ((False, 0), (0.0, 0))}

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
