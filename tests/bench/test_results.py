# SPDX-License-Identifier: Apache-2.0
"""Tables, sentences and files are made of the records' numbers."""

import csv
import json
from dataclasses import replace

import pytest

from vllm_eagle_pangu.bench import run as run_module
from vllm_eagle_pangu.bench.config import BenchConfig, load_config
from vllm_eagle_pangu.bench.experiments.base import (
    Bench,
    Result,
    pays_until,
    record_errors,
    spread_verdict,
)
from vllm_eagle_pangu.bench.experiments.stages import stage_times
from vllm_eagle_pangu.bench.experiments.throughput import Temperature
from vllm_eagle_pangu.bench.records import Key, key_of
from vllm_eagle_pangu.bench.results import write_results
from vllm_eagle_pangu.bench.run import EXPERIMENTS
from vllm_eagle_pangu.measure.prompts import Conversations, Prompt
from vllm_eagle_pangu.tracing.provenance import provenance
from vllm_eagle_pangu.tracing.report.comparison import read_methods

from .test_config import DEMO
from .test_prompts import WordTokenizer

PROMPTS = [Prompt(f"p{i}", ("word " * (i + 1),)) for i in range(16)]
# Seconds of an answer of 128 tokens.
SECONDS = {"plain": 0.4, "chain": 0.25, "tree": 0.2, "own": 0.3}


@pytest.fixture
def bench(tmp_path):
    """The demo's configuration, planned."""
    config = load_config(DEMO)
    talk = Conversations(WordTokenizer(), chat=False)
    bench = Bench(config, *[tmp_path] * 3, PROMPTS, PROMPTS[-6:], talk)
    for kind in EXPERIMENTS:
        groups = kind(bench).groups()
        bench.parts[kind.key] = [part for group in groups for part in group.cut(config.hosts)]
    return bench


def answers(bench):
    """A record for everything that is planned; the second repeat is a tenth slower for trees."""
    for parts in bench.parts.values():
        for part in parts:
            for key in part.keys(bench.config.repeats):
                kind = key.method.partition("-")[0]
                slow = 1.1 if kind == "tree" and key.repeat == 1 else 1.0
                drafts = 0 if kind == "plain" else 32
                yield {
                    **key._asdict(),
                    **{"prompt_tokens": 9, "output_tokens": 128, "output_ids": [1]},
                    **{"drafts": drafts, "drafted": drafts, "accepted": 3 * drafts},
                    **{"full_drafts": drafts // 2, "tau": 4.0 if drafts else 1.0},
                    **{"ttft_ms": 5.0, "tpot_ms": 2.0, "steps_ms": [3.0], "forward_ms": 2.0},
                    "seconds": SECONDS[kind] * slow,
                }


def result_of(bench, key, records):
    experiment = next(kind for kind in EXPERIMENTS if kind.key == key)(bench)
    result = Result(experiment.key, experiment.title)
    experiment.fill(result, records)
    return result


def test_the_demo_measures_greedy_decoding_once_and_compares_within_an_interleaving(bench):
    names = [(m.name, part.temperature) for key in ("E1", "E6") for part in bench.parts[key]
             for m in part.methods]  # fmt: skip
    assert len(names) == len(set(names))
    assert [part.name for part in bench.parts["E2"]] == ["nodes", "depths"]
    assert all(
        len(part.methods) <= bench.config.hosts for ps in bench.parts.values() for part in ps
    )


def test_e1_names_the_fastest_of_each_kind_and_the_spread(bench):
    records = list(answers(bench))
    result = result_of(bench, "E1", records)
    row = next(row for row in result.rows if row["method"] == "tree-4-5-16")
    assert row["speedup"] == pytest.approx(2.0)
    assert row["speedup_min"] == pytest.approx(2 / 1.1)
    assert "The fastest chain is chain-2: 1.60x plain (1.60 to 1.60)" in result.conclusions[0]
    assert "The fastest own chain is own-chain-6: 1.33x plain" in result.conclusions[1]
    assert "1.25 of chain-2, the fastest chain of all; their spreads do" in result.conclusions[3]


def test_e1_measures_a_tree_by_the_fastest_chain_whosever_it_is(bench):
    records = list(answers(bench))
    for record in records:
        if record["method"] == "own-chain-6":
            record["seconds"] = 0.2
    sentences = result_of(bench, "E1", records).conclusions
    assert "1.00 of own-chain-6, the fastest chain of all; their spreads overlap" in sentences[3]


def test_e2_has_every_point_of_both_sweeps(bench):
    result = result_of(bench, "E2", list(answers(bench)))
    assert [r["nodes"] for r in result.rows if r["sweep"] == "nodes"] == [4, 8, 12, 16, 24, 32]
    assert [r["depth"] for r in result.rows if r["sweep"] == "depths"] == [2, 3, 4, 5, 6, 8]
    assert {row["prompts"] for row in result.rows} == {8}


def test_e5_has_a_row_for_every_kind_of_method_at_a_level(bench):
    kinds = ("plain", "chain-2", "scheduled-chain-2", "tree-4-5-16", "adaptive-4-5-16")
    names = ("tokens_per_s", "ttft_ms", "ttft_p99_ms", "tpot_ms", "tpot_p99_ms", "requests", "tau")
    # The machine was half as fast in the second repeat, in which the tree has no figures.
    records = [
        Key("E5", f"concurrency-{level}", method, 0.0, "all", 0, repeat)._asdict()
        | dict.fromkeys(names, place + 1.0)
        | {"output_tokens": 64 * (place + 1), "seconds": 1.0 + repeat}
        for level in (16, 8)
        for place, method in enumerate(kinds)
        for repeat in range(1 + (method != "tree-4-5-16"))
    ]
    result = result_of(bench, "E5", sorted(records, key=lambda record: record["method"]))
    assert [(row["concurrency"], row["method"], row["speedup"]) for row in result.rows] == [
        (level, method, place + 1.0) for level in (8, 16) for place, method in enumerate(kinds)
    ]
    assert [row["repeats"] for row in result.rows[:5]] == [2, 2, 2, 1, 2]


def test_e6_says_where_a_method_stops_paying(bench):
    records = list(answers(bench))
    for record in records:
        if record["temperature"] >= 1 and record["method"] == "tree-4-5-16":
            record["seconds"] = 1.0
        if record["temperature"] > 0 and record["method"] == "chain-2":
            record["accepted"] = 0
    result = result_of(bench, "E6", records)
    # Of E1's, too.
    assert {row["prompts"] for row in result.rows} == {8}
    sentences = result.conclusions
    assert "tree-4-5-16 stops paying at temperature 1.0: 0.40x plain (0.40 to 0.40)." in sentences
    assert "chain-2 had not one drafted token accepted at temperature 0.5, 1.0, 1.5." in sentences
    assert "chain-4 pays at every temperature tried, up to 1.5." in sentences


def test_e6_leaves_vllms_chains_out_where_told_to(bench):
    bench.config = replace(
        bench.config, temperature=replace(bench.config.temperature, vllm_chains=False)
    )
    (group, *_) = Temperature(bench).groups()
    assert [method.kind for method in group.methods] == ["plain", "own chain", "tree", "tree"]
    bench.parts["E6"] = Temperature(bench).groups()
    rows = result_of(bench, "E6", list(answers(bench))).rows
    assert {row["kind"] for row in rows} == {"plain", "own chain", "tree"}


def test_e7_puts_the_measured_speedup_against_the_bound(bench):
    rows = {row["method"]: row for row in result_of(bench, "E7", list(answers(bench))).rows}
    tree = rows["tree-4-5-16"]
    assert (tree["rows"], tree["alpha"], tree["tokens"]) == (17, None, 4.0)
    assert tree["bound"] == pytest.approx(4.0 * 3.0 / 2.0)
    assert tree["fraction"] == pytest.approx(2.0 / 6.0)
    alpha = 96 / (96 + 32 - 16)
    assert rows["chain-2"]["alpha"] == pytest.approx(alpha)
    assert rows["chain-2"]["tokens"] == pytest.approx(1 + alpha + alpha**2)


def test_stage_times_leave_out_the_warm_up_and_shared_steps():
    def line(request="E3 traced x", batch_size=1, kind="step"):
        times = {"verify_us": 2000.0}
        return {"kind": kind, "request": request, "batch_size": batch_size, "stage_us": times}

    lines = [line(), line("warm-1"), line(batch_size=2), line(kind="request")]
    assert stage_times(lines) == {"verify": [2.0]}


def test_everything_is_written(bench, tmp_path):
    pytest.importorskip("matplotlib")
    records = list(answers(bench))
    broken = {**records[0], "prompt": "other", "error": "it broke"}
    del broken["output_ids"]
    records = sorted([*records, broken], key=key_of)
    keys = ("E1", "E2", "E6", "E7")
    results = [result_of(bench, key, records) for key in keys]
    results[0].errors += record_errors(records, "E1")
    facts = {"date": "2026-11-20", "command": "bench", **provenance()}

    write_results(facts, {}, results, records, tmp_path)

    text = (tmp_path / "report.md").read_text()
    assert "**Failed:** plain: it broke (1 answers)" in text
    assert "| tree-4-5-16 | " in text and "2.00 (1.82 to 2.00)" in text
    assert {m.name for m in read_methods(tmp_path / "compare.json")} >= {"plain", "tree-3-5-12"}
    everything = json.loads((tmp_path / "results.json").read_text())
    assert everything["experiments"]["E7"]["rows"][0]["method"] == "chain-2"
    assert everything["provenance"]["versions"]["torch"]
    with (tmp_path / "E2.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 12
    pictures = {path.name for path in tmp_path.glob("*.svg")}
    assert pictures == {"E1.svg", "E2-nodes.svg", "E2-depths.svg", "E6.svg", "E7.svg"}


def test_without_a_section_there_is_no_experiment():
    assert BenchConfig().chosen() == ()


@pytest.mark.parametrize(("errors", "code"), [([], 0), (["it broke"], 1)])
def test_a_run_with_failures_ends_with_1_and_names_them(bench, capsys, errors, code):
    experiment = EXPERIMENTS[0](bench)
    experiment.errors += errors
    assert run_module._conclude(bench, [experiment], []) == code
    assert ("E1 failed: it broke" in capsys.readouterr().err) == bool(errors)


def test_a_loss_within_the_spread_is_said_to_be_one():
    names = ("concurrency", "speedup", "speedup_min", "speedup_max", "repeats")
    rows = [
        dict(zip(names, values, strict=True))
        for values in ((1, 1.5, 1.4, 1.6, 3), (8, 0.9, 0.8, 1.1, 3))
    ]
    assert pays_until("tree", rows, "concurrency") == [
        "tree stops paying at concurrency 8: 0.90x plain (0.80 to 1.10), within its spread."
    ]
    rows[1]["speedup_max"] = 0.95
    assert "within" not in pays_until("tree", rows, "concurrency")[0]
    assert pays_until("tree", rows[:1], "concurrency") == [
        "tree pays at every concurrency tried, up to 1."
    ]
    assert pays_until("tree", [{"concurrency": 1}], "concurrency") == []


@pytest.mark.parametrize(
    ("left", "right", "verdict"),
    [
        ((1.2, 1.4, 3), (1.5, 1.6, 3), "do not touch"),
        ((1.5, 1.6, 3), (1.2, 1.4, 3), "do not touch"),
        ((1.2, 1.5, 3), (1.4, 1.6, 3), "overlap"),
        ((1.2, 1.2, 1), (1.4, 1.4, 1), "one run"),
    ],
)
def test_speedups_are_told_apart_only_by_their_spreads(left, right, verdict):
    names = ("speedup_min", "speedup_max", "repeats")
    rows = [dict(zip(names, values, strict=True)) for values in (left, right)]
    assert verdict in spread_verdict(*rows)
