# SPDX-License-Identifier: Apache-2.0
"""What a session measures, resumes and gives up, with stand-ins for the engines."""

import pytest

from vllm_eagle_pangu.bench import session as session_module
from vllm_eagle_pangu.bench.config import BenchConfig
from vllm_eagle_pangu.bench.engines import EngineError
from vllm_eagle_pangu.bench.experiments.base import Bench
from vllm_eagle_pangu.bench.groups import Group
from vllm_eagle_pangu.bench.records import key_of, read_records
from vllm_eagle_pangu.bench.session import Session
from vllm_eagle_pangu.measure.method import PLAIN, chain, tree
from vllm_eagle_pangu.measure.prompts import Conversations, Prompt

from .test_prompts import WordTokenizer

PROMPTS = tuple(Prompt(f"p{i}", ("word " * (i + 1),)) for i in range(5))
TREE = tree((4, 5, 16))


class FakeHost:
    def __init__(self, pool, name):
        self.pool, self.name = pool, name

    def measure(self, requests, forward_times):
        for request in requests:
            self.pool.asked.append((self.name, request))
            if request["id"].split()[4] == self.pool.dies_at.get(self.name):
                raise EngineError("it died")
            yield {"output_ids": [0, 1], "tau": 1.0}


class FakePool:
    """Engines that answer at once, but for those in `refused` and those that die at a prompt."""

    refused: dict = {}  # noqa: RUF012
    dies_at: dict = {}  # noqa: RUF012

    def __init__(self, model, options, limit):
        self.hosts, self.asked, self.loaded, self.ended = {}, [], [], []

    def load(self, wanted):
        self.loaded.append(dict(wanted))
        alive = wanted.keys() - self.refused.keys()
        self.hosts |= {name: FakeHost(self, name) for name in alive}
        return {name: self.refused[name] for name in wanted if name in self.refused}

    def fail(self, name, error):
        self.end(name)

    def end(self, name):
        self.ended.append(name)
        self.hosts.pop(name, None)

    def close(self):
        self.hosts.clear()


@pytest.fixture
def start(tmp_path, monkeypatch):
    """`start(**configuration)`: a session that writes to the test's folder; ends the last."""
    monkeypatch.setattr(session_module, "EnginePool", FakePool)
    monkeypatch.setattr(session_module, "SETTLE_S", 0.0)
    monkeypatch.setattr(FakePool, "refused", {})
    monkeypatch.setattr(FakePool, "dies_at", {})

    opened = []

    def new(**keys):
        if opened:
            opened[-1].close()
        config = BenchConfig(**{"repeats": 2, **keys})
        talk = Conversations(WordTokenizer(), chat=False)
        bench = Bench(config, tmp_path, tmp_path, tmp_path, [], [], talk)
        opened.append(Session(bench))
        return opened[-1]

    yield new
    opened[-1].close()


def group(*methods, prompts=PROMPTS, **keys):
    return Group("E1", "g", methods or (PLAIN, TREE), prompts, **keys)


def test_everything_of_a_group_is_recorded(start, tmp_path):
    start().measure(group())
    assert read_records(tmp_path).keys() == set(group().keys(2))


def test_a_second_session_measures_only_what_is_missing(start, tmp_path):
    start().measure(group(prompts=(PROMPTS[1], PROMPTS[4])))
    session = start()
    session.measure(group())
    assert {request["id"].split()[4] for _, request in session.pool.asked} == {"p0", "p2", "p3"}
    again = start()
    again.measure(group())
    assert again.pool.loaded == []


def test_a_method_that_is_refused_is_recorded_and_the_others_go_on(start, monkeypatch):
    monkeypatch.setattr(FakePool, "refused", {TREE.name: "no such key"})
    session = start()
    session.measure(group())
    errors = [r for r in session.records.values() if "error" in r]
    assert {r["error"] for r in errors} == {"no such key"}
    assert {r["method"] for r in errors} == {TREE.name}
    assert len(errors) == len(session.records) / 2 == 10


def test_what_failed_is_tried_again_by_the_next_session(start, monkeypatch):
    monkeypatch.setattr(FakePool, "refused", {TREE.name: "no such key"})
    start().measure(group())
    monkeypatch.setattr(FakePool, "refused", {})
    session = start()
    session.measure(group())
    assert {name for name, _ in session.pool.asked} == {TREE.name}
    assert not any("error" in record for record in session.records.values())


def test_an_engine_that_dies_keeps_what_it_measured(start, monkeypatch):
    monkeypatch.setattr(FakePool, "dies_at", {TREE.name: "p2"})
    session = start()
    session.measure(group())
    mine = {key_of(r): r for r in session.records.values() if r["method"] == TREE.name}
    measured = {key[4] for key, record in mine.items() if "error" not in record}
    assert measured == {"p0", "p1"}
    assert len(mine) == 10


def test_the_second_turn_is_asked_with_the_same_methods_first_answer(start):
    session = start(repeats=1)
    talk = Prompt("t", ("one two", "three"))
    session.measure(group(PLAIN, prompts=(talk,)))
    first, second = (request["ids"] for _, request in session.pool.asked)
    words = session.bench.conversations.tokenizer.words
    assert [words[i] for i in first] == ["<s>", "one", "two"]
    assert [words[i] for i in second] == ["<s>", "one", "two", "<s>", "one", "three"]


def test_a_conversation_that_grew_too_long_is_an_error_of_that_turn(start):
    session = start(repeats=1, tokens=8, engine=BenchConfig().engine)
    object.__setattr__(session.config.engine, "max_model_len", 11)
    session.measure(group(PLAIN, prompts=(Prompt("t", ("one two", "three")),)))
    errors = [record.get("error") for record in session.records.values()]
    assert errors == [None, "6 tokens and 8 more exceed 11"]


def test_sampled_requests_have_seeds_of_prompt_and_repeat_alone(start, tmp_path):
    session = start()
    session.measure(group(PLAIN, TREE, temperature=1.0))
    seeds = {}
    for _, request in session.pool.asked:
        place = tuple(request["id"].split()[4:])
        seeds.setdefault(place, set()).add(request["params"]["seed"])
    assert all(len(found) == 1 for found in seeds.values())
    assert len(set.union(*seeds.values())) == len(seeds)


def test_traced_engines_are_others_and_end_with_their_group(start, tmp_path):
    session = start()
    session.measure(group(PLAIN, TREE, chain(2), traced=True))
    (loaded,) = session.pool.loaded
    assert loaded[f"{TREE.name} traced"]["trace_dir"].endswith(f"traces/{TREE.name}")
    assert set(session.pool.ended) == {f"{TREE.name} traced"}
    assert loaded.keys() == {f"{TREE.name} traced", PLAIN.name, "chain-2"}
