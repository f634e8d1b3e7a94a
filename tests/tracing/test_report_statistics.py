# SPDX-License-Identifier: Apache-2.0
"""The report's figures against a run of four steps that one can count by hand."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from vllm_eagle_pangu.tracing.reader import find_run
from vllm_eagle_pangu.tracing.report.comparison import read_methods
from vllm_eagle_pangu.tracing.report.explorer import explorer_data
from vllm_eagle_pangu.tracing.report.page import microseconds
from vllm_eagle_pangu.tracing.report.recording import Step, read_recording
from vllm_eagle_pangu.tracing.report.statistics import Share, statistics_of

LOG = math.log

# The root's children are rows 1 (0.6) and 2 (0.3); row 1's are 3 (0.55) and 4 (0.25).
TREE: dict[str, Any] = {
    "schema": 1,
    "kind": "step",
    "step": 1,
    "request": "a",
    "batch_size": 2,
    "prefix_tokens": 10,
    "tokens": [5, 11, 12, 13, 14],
    "parents": [0, 0, 0, 1, 1],
    "scores": [0.0, LOG(0.6), LOG(0.3), LOG(0.6 * 0.55), LOG(0.6 * 0.25)],
    "accepted_rows": [0, 1, 3],
    "emitted": [11, 13, 20],
    "stage_us": {"draft_us": 10.0, "step_us": 40.0},
}
STEPS = [
    TREE,
    # The second request of the same engine step: nothing accepted.
    {**TREE, "request": "b", "accepted_rows": [0], "emitted": [99]},
    # Row 2 is a leaf: the path ends there for want of nodes.
    {
        **TREE,
        "step": 2,
        "prefix_tokens": 13,
        "tokens": [20, 11, 12, 13, 14],
        "accepted_rows": [0, 2],
        "emitted": [12, 21],
        "stage_us": {"draft_us": 20.0, "step_us": 50.0},
    },
    # A tree of one node, in a batch of one.
    {
        **TREE,
        "step": 3,
        "request": "b",
        "batch_size": 1,
        "tokens": [99, 31],
        "parents": [0, 0],
        "scores": [0.0, LOG(0.95)],
        "accepted_rows": [0, 1],
        "emitted": [31, 32],
        "stage_us": {"draft_us": 30.0, "step_us": 60.0, "rate": 7},
    },
]
REQUEST = {
    "schema": 1,
    "kind": "request",
    "request": "a",
    "prompt_tokens": 9,
    "output_tokens": 6,
    "steps": 2,
    "nodes": 8,
    "accepted": 3,
    "tau": 2.5,
    "started_us": 100,
    "ended_us": 1600,
}


def write(folder: Path, steps: list[dict[str, Any]], requests: tuple[dict[str, Any], ...] = ()):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "manifest.json").write_text('{"schema": 1, "run": "by hand"}')
    for name, records in (("steps", steps), ("requests", requests)):
        lines = "".join(json.dumps(record) + "\n" for record in records)
        (folder / f"{name}.jsonl").write_text(lines)
    return folder


@pytest.fixture
def statistics(tmp_path: Path):
    return statistics_of(read_recording(write(tmp_path, STEPS, (REQUEST,))))


def test_headline_figures(statistics):
    assert (statistics.steps, statistics.engine_steps) == (4, 3)
    assert (statistics.nodes, statistics.accepted, statistics.tokens) == (13, 4, 8)
    assert statistics.tau == 2.0
    assert statistics.emitted == {1: 1, 2: 2, 3: 1}
    assert statistics.medians == {
        "tokens per step": 2.0,
        "nodes per step": 4.0,
        "prefix tokens": 10.0,
        "tau of a request": 2.0,
        "batch size": 2.0,
    }


def test_requests_know_their_steps_and_their_end(statistics):
    first, second = statistics.requests
    assert (first.name, first.steps, first.nodes, first.accepted, first.tau) == ("a", 2, 8, 3, 2.5)
    assert (first.finished.prompt_tokens, first.finished.duration_us) == (9, 1500.0)
    assert (second.name, second.tau, second.finished) == ("b", 1.5, None)


def test_acceptance_by_position(statistics):
    first, second = statistics.positions
    assert (first.share, first.conditional) == (Share(3, 4), Share(3, 4))
    assert second.share == Share(1, 4)
    # Of three paths at depth 1 one ended at row 2 and one at a tree of one node: no children there.
    assert (second.conditional, second.of_offered) == (Share(1, 3), Share(1, 1))


def test_acceptance_by_rank_counts_tested_nodes_only(statistics):
    # Best of siblings: rows 1 of four trees (accepted twice) and row 3 of one (accepted).
    # Second best: rows 2 of three trees (accepted once) and row 4 of one (not).
    assert statistics.ranks == [Share(3, 5), Share(1, 4)]


def test_calibration(statistics):
    conditional = {one.low: (one.mean_probability, one.accepted) for one in statistics.conditional}
    assert conditional[0.3] == (pytest.approx(0.3), Share(1, 3))
    assert conditional[0.5] == (pytest.approx(0.55), Share(1, 1))
    assert conditional[0.2] == (pytest.approx(0.25), Share(0, 1))
    assert conditional[0.9] == (pytest.approx(0.95), Share(1, 1))
    assert sum(one.accepted.total for one in statistics.conditional) == 9
    assert sum(one.accepted.total for one in statistics.cumulative) == statistics.nodes


OF_THE_FIRST = (-20.0, 0.0, 40.0)


@pytest.mark.parametrize(
    ("belief", "promised"),
    [((0.0, 1.0, 0.0), 2.38), ((-20.0, 0.0, 0.0), 1.0), (OF_THE_FIRST, 3.0)],
)
def test_what_adaptive_trees_promise(tmp_path, statistics, belief, promised):
    """The drafter's own word, 1 + 0.6 + 0.3 + 0.33 + 0.15, none of it, and that each node's
    likeliest child is right, and no other."""
    assert statistics.promised is None and statistics.believed == []
    steps = [{**TREE, "belief": belief}, *STEPS[1:]]
    found = statistics_of(read_recording(write(tmp_path, steps)))
    assert found.promised == pytest.approx(promised, abs=1e-4) and found.brought == 3
    assert sum(one.accepted.total for one in found.believed) == 4
    if promised == 2.38:
        only = statistics_of(read_recording(write(tmp_path, [TREE])))
        assert found.believed == only.cumulative


def test_stage_times_count_an_engine_step_once_and_put_the_whole_step_last(statistics):
    draft, step = statistics.stages
    assert (draft.name, draft.steps, draft.p50, draft.p90) == ("draft", 3, 20.0, 28.0)
    assert draft.p99 == pytest.approx(29.8)
    assert draft.share == pytest.approx(60 / 150)
    assert (step.name, step.p50, step.share) == ("step", 50.0, 1.0)


def test_a_share_has_wilsons_interval():
    assert Share(5, 10).interval() == pytest.approx((0.2366, 0.7634), abs=1e-4)
    low, high = Share(0, 10).interval()
    assert low == 0.0 and high == pytest.approx(0.2775, abs=1e-4)


def test_a_drafter_without_numbers_is_reported_and_not_counted(tmp_path: Path):
    broken = {**TREE, "scores": [0.0, math.nan, LOG(0.3), -math.inf, math.nan]}
    recording = read_recording(write(tmp_path, [broken]))
    assert [one.accepted for one in statistics_of(recording).cumulative] == [Share(0, 1)]
    assert explorer_data(recording.steps)["steps"][0]["scores"] == [0.0, None, -1.204, None, None]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"parents": [0, 0, 3, 1, 1]}, "a row's parent must stand before it"),
        ({"scores": [0.0]}, "one entry per row"),
        ({"accepted_rows": [0, 3]}, "from each row to one of its children"),
        ({"accepted_rows": [1]}, "0 first"),
        ({"tokens": None}, "tokens: .* valid list"),
        ({"prefix_tokens": "many"}, "prefix_tokens: .* valid integer"),
    ],
)
def test_a_broken_step_is_refused_by_file_and_line(tmp_path: Path, change, problem):
    run = write(tmp_path, [TREE, {**TREE, **change}])
    with pytest.raises(ValueError, match=problem) as refused:
        read_recording(run)
    assert f"{run / 'steps.jsonl'}:2" in str(refused.value)


def test_a_missing_key_is_named(tmp_path: Path):
    run = write(tmp_path, [{key: value for key, value in TREE.items() if key != "emitted"}])
    with pytest.raises(ValueError, match="emitted: Field required"):
        read_recording(run)


def test_of_several_runs_one_must_be_chosen(tmp_path: Path):
    write(tmp_path / "one", [TREE])
    assert find_run(tmp_path) == tmp_path / "one"
    write(tmp_path / "two", [TREE])
    with pytest.raises(ValueError, match="2 runs in it; pass one of them; the last are one, two"):
        find_run(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"manifest\.json"):
        find_run(tmp_path / "none")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "not JSON"),
        ("[]", 'no list "methods"'),
        ('{"methods": [{"tau": 1, "speedup": 1}]}', r"methods\[0\]\.name=None: is missing; set"),
        (
            '{"methods": [{"name": "x", "tau": null, "speedup": 1}]}',
            r"\[0\]\.tau=None: must be a number",
        ),
        ('{"methods": [{"name": "x", "tau": Infinity, "speedup": 1}]}', "must be a finite number"),
        ('{"methods": [{"name": "x", "tau": 1, "speedup": -1}]}', r"speedup=-1: must be above 0"),
    ],
)
def test_a_broken_comparison_is_refused(tmp_path: Path, content, problem):
    path = tmp_path / "bench.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=problem) as refused:
        read_methods(path)
    assert str(path) in str(refused.value)


def step(request: str, number: int, prefix: int, root: int, emitted: list[int]) -> Step:
    return Step(number, request, 1, prefix, [root], [0], [0.0], [0], emitted, {})


def test_embedded_steps_are_bounded_and_leave_out_no_request_of_several():
    # Two requests taking turns: every second step in the order of the file is one request's.
    steps = [step("ab"[n % 2], n, 10 + n, 0, [n]) for n in range(1000)]
    data = explorer_data(steps, limit=100)
    assert (len(data["steps"]), data["total"]) == (100, 1000)
    assert [sum(s["request"] == r for s in data["steps"]) for r in (0, 1)] == [50, 50]


def test_the_text_before_a_root_is_what_its_request_emitted():
    steps = [
        step("a", 1, 10, 1, [2, 3]),
        step("a", 2, 12, 3, [4]),
        # Step 3 is missing.
        step("a", 4, 15, 8, [9]),
        step("b", 5, 16, 9, [7]),
    ]
    assert [one["before"] for one in explorer_data(steps)["steps"]] == [[], [1, 2], [], []]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.04, "0.04 µs"),
        (9.996, "10.0 µs"),
        (999.7, "1.00 ms"),
        (12345, "12.3 ms"),
        (2e9, "2,000 s"),
    ],
)
def test_times_are_shown_in_three_digits(value, shown):
    assert microseconds(value) == shown
