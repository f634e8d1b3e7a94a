# SPDX-License-Identifier: Apache-2.0
"""The commands that E5 hands to vLLM, and what it records of turns; servers stood in for."""

from pathlib import Path

import pytest

from vllm_eagle_pangu.bench.config import BenchConfig, ConcurrencyConfig
from vllm_eagle_pangu.bench.experiments import concurrency
from vllm_eagle_pangu.bench.experiments.base import Bench
from vllm_eagle_pangu.bench.experiments.concurrency import Concurrency, bench_server
from vllm_eagle_pangu.measure.method import PLAIN, tree
from vllm_eagle_pangu.measure.prompts import Conversations, Prompt

from .test_prompts import WordTokenizer


def bench(config):
    talk = Conversations(WordTokenizer(), chat=False)
    return Bench(config, Path("target"), Path("head"), Path("out"), [], [], talk)


@pytest.fixture
def server():
    config = BenchConfig(concurrency=ConcurrencyConfig(levels=(1, 32)))
    return bench_server(tree((4, 5, 16)), bench(config))


def test_the_server_has_room_for_the_highest_level(server):
    command = server.command()
    # vLLM takes the last of a repeated flag.
    assert [flag for flag in command if "max-num-seqs" in flag][-1] == "--max-num-seqs=32"
    assert "--speculative-config" in command


def test_plain_decoding_is_served_without_speculation():
    config = BenchConfig(concurrency=ConcurrencyConfig())
    assert "--speculative-config" not in bench_server(PLAIN, bench(config)).command()


class Loop:
    """A server's clients: each turn is recorded, and emits what `tokens` makes of those wanted."""

    def __init__(self, method, server, asked, clients):
        self.method, self.asked, self.clients = method, asked, clients

    def turn(self, tokens, seconds, which=0):
        self.turns.append((self.method.name, self.clients, tokens, next(self.asked(which))))
        emitted = self.tokens(self.method, tokens)
        drafts = 0 if self.method == PLAIN else 10
        times = {"seconds": 2.0, "first": [0.1, 0.3], "behind": [0.02, 0.04]}
        return {"tokens": emitted, "drafts": drafts, "accepted": 2 * drafts, **times}


class Records(dict):
    """A session's."""

    def has(self, key):
        return "error" not in self.get(key, {"error": ""})

    record = dict.__setitem__


@pytest.fixture
def measured(monkeypatch):
    """Measures E5's points of plain decoding and a tree that `records` lacks; the turns taken."""
    monkeypatch.setattr(concurrency, "ServedLoop", Loop)
    chosen = ConcurrencyConfig(levels=(1, 8), tokens=16, repeats=2)
    of = bench(BenchConfig(concurrency=chosen))
    of.prompts = [Prompt("a", ("one two three",))]
    ways = (PLAIN, tree((4, 5, 16)))

    def measure(records, tokens=lambda method, wanted: wanted):
        monkeypatch.setattr(Loop, "turns", [], raising=False)
        monkeypatch.setattr(Loop, "tokens", staticmethod(tokens), raising=False)
        Concurrency(of)._measure_all(records, dict.fromkeys(ways))
        return Loop.turns

    return measure


def test_servers_take_turns_at_a_level_and_are_asked_the_same(measured):
    records = Records()
    turns = measured(records)
    # A warm-up before each point, then as many tokens as that many requests have on average.
    assert [turn[:3] for turn in turns[:4]] == [
        ("plain", 1, 4 * 16),
        ("plain", 1, 12 * 16),
        ("tree-4-5-16", 1, 4 * 16),
        ("tree-4-5-16", 1, 12 * 16),
    ]
    assert [turn[:3] for turn in turns[4:6]] == [
        ("tree-4-5-16", 8, 4 * 16),
        ("tree-4-5-16", 8, 16 * 16),
    ]
    assert len({str(turn[3]) for turn in turns[::2]}) == 1
    assert [(key.group, key.repeat, record["tau"]) for key, record in records.items()] == [
        (f"concurrency-{level}", repeat, tau)
        for level, repeat, taus in (
            *((1, 0, (None, 3)), (8, 0, (3, None))),
            *((1, 1, (3, None)), (8, 1, (None, 3))),
        )
        for tau in taus
    ]
    first = next(iter(records.values()))
    assert first["tokens_per_s"] == 12 * 16 / 2 and first["output_tokens"] == 12 * 16
    assert (first["ttft_ms"], first["tpot_ms"], first["requests"]) == pytest.approx((200, 30, 2))
    assert first["ttft_p99_ms"] == pytest.approx(298) and first["tpot_p99_ms"] < 40


def test_a_point_that_fails_takes_no_other_down_and_is_measured_again(measured):
    def broken(method, wanted):
        if method != PLAIN and wanted == 16 * 16:
            raise RuntimeError("a request failed: ServerDisconnectedError()")
        return wanted - (method == PLAIN and wanted == 12 * 16)

    records = Records()
    measured(records, broken)
    assert {(key.method, key.group): record.get("error") for key, record in records.items()} == {
        ("plain", "concurrency-1"): "191 tokens in 900 s",
        ("tree-4-5-16", "concurrency-1"): None,
        ("plain", "concurrency-8"): None,
        ("tree-4-5-16", "concurrency-8"): "a request failed: ServerDisconnectedError()",
    }
    again = measured(records)
    assert {turn[:2] for turn in again} == {("plain", 1), ("tree-4-5-16", 8)} and len(again) == 8
    assert not any("error" in record for record in records.values()) and len(records) == 8
