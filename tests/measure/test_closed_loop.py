# SPDX-License-Identifier: Apache-2.0
"""Whose turn it is in closed loops, what counts, and what clients ask; engines stood in for."""

import math
from itertools import islice, repeat
from types import SimpleNamespace

import pytest

from vllm_eagle_pangu.measure.closed_loop import TURNS, Loop, measure, requests
from vllm_eagle_pangu.measure.engine import Served
from vllm_eagle_pangu.measure.method import PLAIN, Method, tree

NARROW = tree((2, 3, 6))


class Clock:
    """An engine whose steps give each client so many tokens in a tenth of a second."""

    def __init__(self, name, tokens, diary):
        self.name, self.tokens, self.diary = name, tokens, diary
        self.counts = {"drafts": 0, "accepted": 0}
        self.runner, self.resumed = SimpleNamespace(stages=self), 0

    def resume(self):
        self.resumed += 1
        self.diary.append(self.name)

    def serve(self, asked, clients):
        while True:
            count = clients()
            if self.tokens > 1:
                self.counts["drafts"] += count
                self.counts["accepted"] += count * (self.tokens - 1)
            yield Served(0.1, count * self.tokens, [0.2])


@pytest.fixture
def loops():
    diary = []
    return [
        Loop(m, Clock(c, t, diary), iter(()), 1) for m, c, t in ((PLAIN, "p", 1), (NARROW, "n", 2))
    ]


@pytest.mark.parametrize("ramp", [False, True])
def test_engines_take_turns_and_ratios_are_within_a_round(loops, ramp):
    warm, each = not ramp, 32 if ramp else None
    plain, narrow = measure(loops, [3], seconds=1.6, rounds=2, ramp=ramp, each=each)
    assert (plain["clients"], plain["method"], narrow["method"]) == (3, "plain", NARROW.name)
    assert plain["tokens_per_s"] == pytest.approx(30) and plain["tau"] is None
    assert plain["ratio"] == plain["least"] == plain["most"] == 1
    assert narrow["ratio"] == pytest.approx(2) and narrow["tau"] == 2
    assert narrow["ratios"] == pytest.approx([2, 2])
    # Two tokens of a client a step.
    assert narrow["drafts"] == [narrow["answers"] // 2 * 3] * 2 and plain["drafts"] == [0, 0]
    assert narrow["ttft_ms"] == pytest.approx(200)
    assert [*map(len, narrow["first_ms"])] == [narrow["answers"] // 2] * 2
    assert {wait for of_round in narrow["first_ms"] for wait in of_round} == {200.0}
    said = "".join(loops[0].llm.diary)
    first = "p" if warm else ""
    assert said[: len(first)] == first, "what plain decoding emits is a round's tokens"
    pairs = said[len(first) :]
    assert len(pairs) == 2 * TURNS * (2 + warm)
    assert pairs[:6] == "pnnppn", "who begins changes"
    # A first token in each step; of the warm round's none counts.
    tokens = (3 * 16 if warm else 3 * 32) / TURNS
    assert plain["answers"] == 2 * TURNS * -(-tokens // 3)


class Diary:
    """A loop that emits eight tokens in so many seconds, turn by turn, and notes who and what."""

    def __init__(self, method, seconds, diary):
        self.method, self.clients, self.seconds, self.diary = method, 1, iter(seconds), diary

    def turn(self, tokens=8, seconds=1.0, which=0):
        self.diary.append((self.method.name, self.clients, which))
        return {"tokens": 8, "seconds": next(self.seconds), "first": [], "drafts": 0, "accepted": 0}


def test_turns_of_a_round_have_one_number_for_all():
    diary = []
    loops = [Diary(method, repeat(1.0), diary) for method in (PLAIN, NARROW)]
    for _ in measure(loops, [1, 2], seconds=1.0, rounds=1, parts=1):
        pass
    # What plain decoding emits is asked before the turns of each number of clients.
    assert [which for *_, which in diary] == [0, 1, 1, 2, 2, 3, 4, 4, 5, 5]


def test_each_round_of_a_ramp_has_all_numbers_of_clients():
    diary = []
    loops = [Diary(method, repeat(1.0), diary) for method in (PLAIN, NARROW)]
    rows = [*measure(loops, [1, 2, 1], seconds=1.0, rounds=2, ramp=True, parts=1)]
    assert [row["clients"] for row in rows] == [1, 1, 2, 2, 1, 1]
    assert all(len(row["ratios"]) == 2 for row in rows), "the way back is no more of the way there"
    # What plain decoding emits with one client is known on the way back.
    clients = [clients for name, clients, _ in diary if name == "plain"]
    assert clients == [1, 1, 2, 2, 1, 1, 2, 1]
    assert len({which for *_, which in diary}) == 2 + 6


def test_ratios_are_to_all_of_plain_decoding_and_their_error_is_of_rounds():
    methods = PLAIN, NARROW, Method("plain", 2)
    seconds = (1.0, 1.0, 2.0), (1.0, 0.5, 0.5), (1.0, 4.0, 2.0)
    loops = [Diary(*one, []) for one in zip(methods, seconds, strict=True)]
    plain, narrow, again = measure(loops, [1], 1.0, rounds=3, ramp=True, each=8, parts=1)
    assert plain["ratios"] == [1, 1, 1] and plain["error"] == 0
    assert again["ratios"] == pytest.approx([1, 1 / 4, 1])
    assert narrow["ratios"] == pytest.approx([1, 4, 4])
    assert narrow["ratio"] == pytest.approx(4) and narrow["mean"] == pytest.approx(16 ** (1 / 3))
    # Of 0, log 4, log 4 the deviation is log 4 / sqrt 3.
    assert narrow["error"] == pytest.approx(math.log(4) / 3)


def test_one_round_has_no_error(loops):
    _, narrow = measure(loops, [3], seconds=1.6, rounds=1)
    assert narrow["error"] is None


def test_every_engine_is_asked_the_same_and_answers_differ_in_length():
    prompts = [[1], [2, 3]]
    greedy = list(islice(requests(prompts, 64, 0.0), 200))
    assert greedy == list(islice(requests(prompts, 64, 0.0), 200))
    lengths = {params["max_tokens"] for _, params in greedy}
    assert min(lengths) >= 32 and max(lengths) <= 96 and len(lengths) > 20
    assert all(params["ignore_eos"] and "seed" not in params for _, params in greedy)
    # vLLM refuses an answer of no token.
    (shortest,) = {params["max_tokens"] for _, params in islice(requests(prompts, 1, 0.0), 20)}
    assert shortest == 1
    another = list(islice(requests(prompts, 64, 0.0, which=1), 200))
    assert another != greedy and sorted(another[0][1]) == sorted(greedy[0][1])
    sampled = list(islice(requests(prompts, 64, 0.8, ignore_eos=False), 200))
    assert [params["seed"] for _, params in sampled] == list(range(200))
    assert not any(params["ignore_eos"] for _, params in sampled)
