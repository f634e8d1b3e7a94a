# SPDX-License-Identifier: Apache-2.0
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from vllm_eagle_pangu.core.tree import TreeBatch
from vllm_eagle_pangu.tracing import writer as writer_module
from vllm_eagle_pangu.tracing.bounded_lines import BoundedLines
from vllm_eagle_pangu.tracing.config import TraceConfig
from vllm_eagle_pangu.tracing.lines import StepEntry, step_records
from vllm_eagle_pangu.tracing.reader import read_manifest, read_run
from vllm_eagle_pangu.tracing.writer import ENTRY_ROWS, TraceWriter

from .steps import SHAPE, agreeing_draws, grown_tree, walk

STAGES = {"prepare_us": 101.25, "verify_us": 2903.0, "step_us": 5804.06}
# The writer's thread looks at its queue when it is closed, and not before.
AT_CLOSE = 3600.0


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., TraceWriter]:
    """A writer into a fresh folder: `start(sample_rate=..., max_bytes=..., queue_rows=...)`."""

    def started(
        sample_rate: float = 1.0,
        max_bytes: int = 2**20,
        queue_rows: int = writer_module.QUEUE_ROWS,
        flush_seconds: float = AT_CLOSE,
    ) -> TraceWriter:
        monkeypatch.setattr(writer_module, "QUEUE_ROWS", queue_rows)
        monkeypatch.setattr(writer_module, "FLUSH_SECONDS", flush_seconds)
        return TraceWriter(TraceConfig(str(tmp_path), sample_rate, max_bytes))

    return started


def trace(writer: TraceWriter, step: int, tree: TreeBatch, requests: list[str]):
    paths = walk(tree, agreeing_draws(tree))
    trees = tree.batch_size
    prefix_len, shapes = range(7, 7 + trees), [SHAPE] * trees
    now = writer.now_us()
    writer.step(StepEntry(now, step, trees + 1, requests, prefix_len, shapes, tree, paths, STAGES))
    return paths


def test_a_steps_lines_equal_the_tensors(start):
    tree = grown_tree(3).cut(torch.tensor([16, 5, 0]))
    writer = start()
    paths = trace(writer, 4, tree, ["a", 'b "quoted"\n', "ç"])
    writer.close()

    records = list(read_run(writer.folder))
    assert [record["request"] for record in records] == ["a", 'b "quoted"\n', "ç"]
    for b, record in enumerate(records):
        rows, emitted = (17, 6, 1)[b], int(paths.length[b]) + 1
        assert list(record) == [
            *("schema", "kind", "step", "request", "time_us", "batch_size", "prefix_tokens"),
            *("shape", "tokens", "parents", "scores", "accepted_rows", "emitted", "belief"),
            "stage_us",
        ]
        assert (record["schema"], record["kind"], record["step"]) == (1, "step", 4)
        assert (record["batch_size"], record["prefix_tokens"]) == (4, 7 + b)
        assert record["shape"] == {"width": 4, "depth": 5, "nodes": 16}
        assert record["tokens"] == tree.tokens[b, :rows].tolist()
        assert record["parents"] == tree.parent[b, :rows].tolist()
        assert record["scores"] == [round(s, 4) for s in tree.score[b, :rows].tolist()]
        assert record["accepted_rows"] == paths.rows[b, :emitted].tolist()
        assert record["emitted"] == paths.output[b, :emitted].tolist()
        assert record["belief"] is None
        assert record["stage_us"] == {"prepare_us": 101.2, "verify_us": 2903.0, "step_us": 5804.1}
        assert 0 <= record["time_us"] <= writer.now_us()
    assert int(paths.length.max()) > 1, "a path worth the name"


def test_scores_that_are_not_finite_leave_the_line_readable(start):
    tree = grown_tree(1)
    tree.score[0, 3], tree.score[0, 4] = torch.nan, -torch.inf
    writer = start()
    trace(writer, 0, tree, ["a"])
    writer.close()
    (record,) = read_run(writer.folder)
    assert record["scores"][3] != record["scores"][3]
    assert record["scores"][4] == -torch.inf


def test_shapes_may_differ_by_tree(start):
    tree, writer = grown_tree(2), start()
    paths = walk(tree, agreeing_draws(tree))
    narrow = type(SHAPE)(2, 5, 10)
    beliefs = [None, [0.12345, 1.0, 0.0]]
    shapes = [SHAPE, narrow]
    writer.step(StepEntry(0, 0, 2, ["a", "b"], [3, 4], shapes, tree, paths, {}, beliefs))
    writer.close()
    records = read_run(writer.folder)
    assert [(record["shape"]["nodes"], record["belief"]) for record in records] == [
        (16, None),
        (10, [0.1235, 1.0, 0.0]),
    ]


def test_a_requests_line_sums_up_its_steps(start):
    writer = start()
    writer.request_started("a")
    lengths = []
    for step in range(3):
        paths = trace(writer, step, grown_tree(2, seed=step), ["a", "b"])
        lengths.append(int(paths.length[0]))
    writer.request_ended("a", prompt_tokens=11, output_tokens=9)
    earlier = time.perf_counter() - 1
    writer.request_ended("never drafted", prompt_tokens=1, output_tokens=2, ended_at=earlier)
    writer.close()

    first, other = (r for r in read_run(writer.folder) if r["kind"] == "request")
    times = {name: first.pop(name) for name in ("started_us", "ended_us")}
    assert first == {
        "schema": 1,
        "kind": "request",
        "request": "a",
        "prompt_tokens": 11,
        "output_tokens": 9,
        "steps": 3,
        "nodes": 48,
        "accepted": sum(lengths),
        "tau": round(1 + sum(lengths) / 3, 4),
    }
    assert sum(lengths) > 0
    assert 0 <= times["started_us"] <= times["ended_us"]
    assert (other["steps"], other["tau"]) == (0, None)
    assert other["ended_us"] <= times["ended_us"] - 900_000


def test_sampling_takes_the_same_requests_every_time(start):
    tree, names = grown_tree(64), [f"request-{i}" for i in range(64)]
    runs = []
    for _ in range(2):
        writer = start(sample_rate=0.25)
        wanted = {name for name in names if writer.config.samples(name)}
        trace(writer, 0, tree, names)
        for name in names:
            writer.request_ended(name, 1, 1)
        writer.close()
        records = list(read_run(writer.folder))
        assert {r["request"] for r in records if r["kind"] == "step"} == wanted
        assert {r["request"] for r in records if r["kind"] == "request"} == wanted
        runs.append(wanted)
    assert runs[0] == runs[1]
    assert 8 <= len(runs[0]) <= 24


def test_a_higher_rate_keeps_what_a_lower_one_took():
    names = [f"request-{i}" for i in range(500)]
    few, more = (
        {name for name in names if TraceConfig("x", rate).samples(name)} for rate in (0.1, 0.4)
    )
    assert few < more
    assert abs(len(more) - 200) < 50


def test_files_stay_below_max_bytes_and_requests_outlast_steps(start):
    writer = start(max_bytes=2**16)
    tree = grown_tree(4)
    for step in range(60):
        trace(writer, step, tree, ["a", "b", "c", "d"])
    for index in range(20):
        writer.request_ended(f"request-{index}", 1, 1)
    writer.close()

    size = sum(path.stat().st_size for path in writer.folder.glob("*.jsonl"))
    manifest = read_manifest(writer.folder)
    kinds = [record["kind"] for record in read_run(writer.folder)]
    assert 2**15 < size <= 2**16
    assert manifest["truncated"]
    assert manifest["lines_written"] == {"steps": kinds.count("step"), "requests": 20}
    assert manifest["lines_dropped"]["max_bytes"] == 240 - kinds.count("step") > 0


def test_lines_of_requests_stay_below_max_bytes_too(start):
    writer = start(max_bytes=2**16)
    for index in range(1000):
        writer.request_ended(f"request-{index}", 1, 1)
    writer.close()
    manifest = read_manifest(writer.folder)
    written = manifest["lines_written"]["requests"]
    assert (writer.folder / "requests.jsonl").stat().st_size <= 2**16
    assert manifest["lines_dropped"]["max_bytes"] == 1000 - written > 0
    assert manifest["truncated"]


def test_a_full_queue_drops_and_counts_steps_but_keeps_ends(start):
    tree = grown_tree(1)
    writer = start(queue_rows=3 * (SHAPE.rows + ENTRY_ROWS))
    for step in range(10):
        trace(writer, step, tree, ["a"])
    writer.request_ended("a", 1, 1)
    writer.close()

    records, manifest = list(read_run(writer.folder)), read_manifest(writer.folder)
    assert [r["step"] for r in records if r["kind"] == "step"] == [0, 1, 2]
    assert records[-1]["kind"] == "request"
    assert manifest["lines_dropped"] == {"queue_full": 7, "max_bytes": 0, "failed": 0}
    assert not manifest["truncated"]


def test_the_queue_empties_while_the_engine_goes_on(start):
    """More steps than the queue holds at once, and none is lost."""
    tree = grown_tree(1)
    writer = start(queue_rows=4 * (SHAPE.rows + ENTRY_ROWS), flush_seconds=0.001)
    for step in range(12):
        deadline = time.monotonic() + 30
        while writer._rows_in - writer._rows_out and time.monotonic() < deadline:
            pass
        trace(writer, step, tree, ["a"])
    writer.close()
    assert [record["step"] for record in read_run(writer.folder)] == list(range(12))


def test_nothing_is_traced_after_close_and_closing_twice_is_once(start):
    writer = start()
    trace(writer, 0, grown_tree(1), ["a"])
    writer.close()
    ended_at = read_manifest(writer.folder)["ended_at"]
    trace(writer, 1, grown_tree(1), ["a"])
    writer.close()
    assert len(list(read_run(writer.folder))) == 1
    assert read_manifest(writer.folder)["ended_at"] == ended_at is not None


def test_a_step_that_cannot_be_written_is_counted_and_the_next_one_is(start, caplog):
    tree, writer = grown_tree(1), start()
    paths = walk(tree, agreeing_draws(tree))
    for step in range(2):
        times = {"verify_us": "broken"}
        writer.step(StepEntry(0, step, 1, ["a"], [3], [SHAPE], tree, paths, times))  # type: ignore[arg-type]
    trace(writer, 2, tree, ["a"])
    writer.close()
    assert [record["step"] for record in read_run(writer.folder)] == [2]
    assert read_manifest(writer.folder)["lines_dropped"]["failed"] == 2
    assert caplog.text.count("could not be written") == 1


def test_a_full_disk_ends_the_traces_and_not_the_engine(start, caplog):
    writer = start()

    class Full:
        def write(self, data: bytes) -> int:
            raise OSError(28, "No space left on device")

        def close(self) -> None:
            pass

    writer._lines._files["steps"].close()
    writer._lines._files["steps"] = Full()
    trace(writer, 0, grown_tree(2), ["a", "b"])
    writer.close()
    manifest = read_manifest(writer.folder)
    assert manifest["lines_dropped"]["failed"] == 2
    assert manifest["lines_written"]["steps"] == 0
    assert "No space left" in caplog.text


def test_run_folders_of_one_directory_are_distinct(start):
    first, second = start(), start()
    assert first.folder.parent == second.folder.parent
    assert first.folder != second.folder
    for writer in (first, second):
        trace(writer, 0, grown_tree(1), ["a"])
        writer.close()
        assert len(list(read_run(writer.folder))) == 1


def test_until_it_is_closed_the_manifest_says_that_the_run_has_not_ended(start):
    writer = start()
    assert json.loads((writer.folder / "manifest.json").read_text())["ended_at"] is None
    writer.close()


def test_a_step_costs_the_engine_far_less_than_a_hundred_microseconds(start):
    tree, writer = grown_tree(1), start(queue_rows=2**24)
    paths = walk(tree, agreeing_draws(tree))
    took = []
    for step in range(500):
        begun = time.thread_time()
        now = writer.now_us()
        writer.step(StepEntry(now, step, 1, ["a"], [3], [SHAPE], tree, paths, STAGES))
        took.append(time.thread_time() - begun)
    writer.close()
    assert statistics.median(took) < 100e-6


def test_the_writers_thread_spends_far_less_than_150_microseconds_on_a_tree(tmp_path: Path):
    tree = grown_tree(16)
    paths = walk(tree, agreeing_draws(tree))
    entry = StepEntry(0, 0, 16, ["a"] * 16, [3] * 16, [SHAPE] * 16, tree, paths, STAGES)
    lines, took = BoundedLines(tmp_path, 2**24), []
    for _ in range(50):
        begun = time.thread_time()
        for record in step_records(entry, lambda request: True):
            lines.add("steps", record)
        took.append(time.thread_time() - begun)
    lines.close()
    assert lines.written["steps"] == 50 * 16
    assert statistics.median(took) / 16 < 150e-6
