# SPDX-License-Identifier: Apache-2.0
"""Engines in processes of their own, with a stand-in for the engine."""

import multiprocessing
import os

import pytest

from vllm_eagle_pangu.bench import engines
from vllm_eagle_pangu.bench.engines import EngineError, EnginePool


class Echo:
    """Answers with what it was asked, but for the requests and models that break it."""

    def __init__(self, model, speculative, **options):
        os.write(1, b"a line in the log\n")
        if speculative == "refused":
            raise ValueError("no such key [type=value_error, input_value=1, input_type=int]\n more")
        self.asked = []

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def generate(self, prompts, max_tokens, ignore_eos):
        self.asked.append((prompts, max_tokens, ignore_eos))

    def measure(self, name, prompt, forward_times, **params):
        if name == "dies":
            os._exit(3)
        if name == "raises":
            raise RuntimeError("in a step")
        return {"name": name, "asked": self.asked, "forward_times": forward_times, **params}


@pytest.fixture
def pool(monkeypatch):
    forked = multiprocessing.get_context("fork")
    monkeypatch.setattr(engines.multiprocessing, "get_context", lambda name: forked)
    monkeypatch.setattr(engines, "Engine", Echo)
    monkeypatch.setattr(engines, "server_environment", dict)
    opened = EnginePool("model", {}, 2)
    yield opened
    opened.close(patience_s=0.0)


def request(name):
    return {"id": name, "ids": [1, 2], "params": {"max_tokens": 4}}


def test_each_block_is_warmed_up_the_first_one_longer(pool):
    assert pool.load({"plain": None}) == {}
    block = [request("a"), request("b")]
    assert [figures["name"] for figures in pool.hosts["plain"].measure(block)] == ["a", "b"]
    (last,) = pool.hosts["plain"].measure([request("c")], forward_times=True)
    assert last["asked"] == [([[1, 2]], 32, True), ([[1, 2]], 8, True)]
    assert last["forward_times"] is True and last["max_tokens"] == 4


def test_an_engine_that_does_not_start_says_why_and_is_not_tried_again(pool):
    for _ in range(2):
        assert pool.load({"tree": "refused"}) == {"tree": "ValueError: no such key"}
    assert "tree" not in pool.hosts


@pytest.mark.parametrize(
    ("name", "said"), [("raises", "RuntimeError: in a step"), ("dies", "its log: a line in")]
)
def test_what_was_answered_before_an_engine_broke_is_there(pool, name, said):
    pool.load({"plain": None})
    answers = pool.hosts["plain"].measure([request("a"), request(name), request("b")])
    assert next(answers)["name"] == "a"
    with pytest.raises(EngineError, match=said):
        next(answers)


def test_room_is_made_by_ending_what_is_not_asked_for(pool):
    pool.load({"plain": None, "chain": None})
    pool.hosts["plain"]._ready = False  # a fork holds its own pipe open: no waiting for its end
    pool.load({"chain": None, "tree": None})
    assert pool.hosts.keys() == {"chain", "tree"}
