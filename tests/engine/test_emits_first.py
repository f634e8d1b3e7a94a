# SPDX-License-Identifier: Apache-2.0
"""What a step emitted goes to the clients before the next trees are drafted."""

from queue import Queue

import pytest
from vllm import SamplingParams
from vllm.v1.engine import EngineCoreRequestType
from vllm.v1.engine.core import EngineCoreProc

from vllm_eagle_pangu.core.policy import TreePolicy
from vllm_eagle_pangu.core.shape import TreeShape

pytestmark = pytest.mark.engine

SHAPE = (2, 3, 6)
PROMPTS = [list(b"the quick brown fox"), list(b"over"), list(range(40, 140))]
SMALL = {"max_model_len": 256, "max_num_batched_tokens": 64, "max_num_seqs": 3}
TOKENS = 24


class Counted(TreePolicy):
    """A `TreePolicy` of one shape that counts what it is asked and told."""

    def __init__(self) -> None:
        self.plans = self.reports = 0
        self.fails = False
        self.drafted: set[str] = set()

    def plan(self, requests):
        self.plans += 1
        if self.fails:
            raise RuntimeError("no plan")
        self.drafted |= {request.id for request in requests}
        return [TreeShape(*SHAPE)] * len(requests)

    def deepen(self, level, score):
        return True

    def keep(self, trees, requests, batch):
        return trees

    def observe(self, report):
        self.reports += 1


@pytest.fixture
def counted(engine, tiny_pangu, tiny_head, tree_config_of):
    with engine(tiny_pangu, tree_config_of(tiny_head, SHAPE), **SMALL) as trees:
        trees.runner.step.policy = Counted()
        yield trees


def test_a_step_is_handed_on_before_its_trees_are_drafted(counted, monkeypatch):
    core, policy = counted.llm.llm_engine.engine_core.engine_core, counted.runner.step.policy
    step, post_step, seen = core.step_fn, core.post_step, []

    def stepped():
        before = policy.plans
        outputs = step()
        seen.append((before, policy.plans, policy.reports))
        return outputs

    def after(model_executed):
        assert (policy.plans, policy.reports) == seen[-1][1:], "between the two nothing is drafted"
        post_step(model_executed)
        seen[-1] += (policy.plans, policy.reports)

    monkeypatch.setattr(core, "step_fn", stepped)
    monkeypatch.setattr(core, "post_step", after)
    counted.generate(PROMPTS, max_tokens=TOKENS)
    drafting = [step for step in seen if step[3] > step[0]]
    assert len(drafting) > TOKENS // 4
    for before, handed_on, ended_before, drafted, ended in drafting:
        assert handed_on == before and drafted == before + 1
        assert ended == ended_before + 1, "a step ends with its drafts"


def test_trees_that_nobody_asked_for_are_drafted_before_the_next_step(
    engine, tiny_pangu, counted, monkeypatch
):
    """So the drafter has read what was emitted, and every step ends."""
    core, policy = counted.llm.llm_engine.engine_core.engine_core, counted.runner.step.policy
    post_step, steps = core.post_step, []

    def every_third_time_not(model_executed):
        steps.append(model_executed)
        if len(steps) % 3:
            post_step(model_executed)

    monkeypatch.setattr(core, "post_step", every_third_time_not)
    found = counted.generate(PROMPTS, max_tokens=TOKENS)
    with engine(tiny_pangu, None, **SMALL) as plain:
        assert found == plain.generate(PROMPTS, max_tokens=TOKENS)
    executed = sum(steps)
    assert executed - 2 <= policy.reports <= executed
    assert policy.plans >= executed - 4 and len(policy.drafted) == len(PROMPTS)


def test_whoever_came_in_the_meantime_waits_for_the_drafts(counted, monkeypatch):
    """As a server's core has it, which takes requests from a queue; there is none in a test."""
    core, policy = counted.llm.llm_engine.engine_core.engine_core, counted.runner.step.policy
    core.input_queue, told = Queue(), []

    def came(count: int) -> None:
        core.input_queue.put((EngineCoreRequestType.ABORT, ["nobody"]))
        for _ in range(count):
            core.input_queue.put((EngineCoreRequestType.ADD, None))

    def step() -> None:
        _, executed = core.step_fn()
        EngineCoreProc.post_step(core, executed)
        core.input_queue.queue.clear()

    def puts_off(requests, new, waiting):
        told.append((len(requests), new, waiting))
        return waiting > 1

    monkeypatch.setattr(policy, "puts_off", puts_off, raising=False)
    params = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
    counted.llm.llm_engine.add_request("0", {"prompt_token_ids": PROMPTS[0]}, params)
    for count in (3, 0, 1, 2):
        came(count)
        step()
    # For two there is room.
    assert told == [(1, 1, 2), (1, 0, 0), (1, 0, 1), (1, 0, 2)]
    assert policy.plans == 2 and policy.reports == 4
    counted.llm.llm_engine.abort_request(["0"])
    came(1)
    step()
    assert len(told) == 4, "no step was made"


def test_drafts_that_fail_are_not_tried_again(counted):
    core, policy = counted.llm.llm_engine.engine_core.engine_core, counted.runner.step.policy
    params = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
    counted.llm.llm_engine.add_request("0", {"prompt_token_ids": PROMPTS[0]}, params)
    policy.fails = True
    _, executed = core.step_fn()
    with pytest.raises(RuntimeError, match="no plan"):
        core.post_step(executed)
    policy.fails = False
    core.step_fn()
    assert policy.plans == 1
    core.post_step(True)
    assert policy.plans == 2 and policy.reports == 1
    counted.llm.llm_engine.abort_request(["0"])
