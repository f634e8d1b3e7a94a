# SPDX-License-Identifier: Apache-2.0
import argparse
import dataclasses
import json
from pathlib import Path

import pytest
import torch

from vllm_eagle_pangu.tracing import command, dump
from vllm_eagle_pangu.tracing.config import TraceConfig
from vllm_eagle_pangu.tracing.dump import FailedStep, write_dump
from vllm_eagle_pangu.tracing.dumped import read_dump
from vllm_eagle_pangu.tracing.writer import TraceWriter

from .replaying import replay
from .steps import whole_step


def failure() -> AssertionError:
    try:
        raise AssertionError("tree: planted\nsecond line")
    except AssertionError as error:
        return error


def test_a_dump_holds_everything_that_was_known(tmp_path: Path):
    failed = whole_step()
    failed.tree = failed.tree.cut(torch.tensor([16, 7]))
    failed.tree.score[1, 3] = torch.nan
    path = write_dump(tmp_path, failure(), failed, {"run": "r", "configuration": {"tree_width": 4}})

    read = read_dump(path)
    assert read.step == 12
    assert read.failure["type"] == "AssertionError"
    assert read.failure["message"] == "tree: planted\nsecond line"
    assert read.failure["invariant"] == "tree: planted"
    assert any("raise AssertionError" in line for line in read.failure["traceback"])
    assert read.manifest["configuration"] == {"tree_width": 4}
    for b, request in enumerate(read.requests):
        assert request.request == f"request-{b}"
        for name in ("prompt_token_ids", "output_token_ids", "scheduled_token_ids", "greedy"):
            assert getattr(request, name) == getattr(failed, name)[b], name
        assert request.prefix_len == failed.prefix_len[b]
        assert request.count == failed.count[b]
        assert request.draws[0].tolist() == failed.draws[b].tolist()
        for field in dataclasses.fields(failed.path):
            expected = getattr(failed.path, field.name)[b].tolist()
            assert getattr(request.path, field.name)[0].tolist() == expected
        again, tree = request.tree, failed.tree.select(torch.tensor([b]))
        for name in ("tokens", "parent", "depth", "valid", "visible", "score"):
            torch.testing.assert_close(
                getattr(again, name), getattr(tree, name), rtol=0, atol=0, equal_nan=True, msg=name
            )
        cache = request.caches[0]
        assert (cache.block_size, cache.block_ids) == (8, failed.caches[0].block_ids[b])
        assert cache.linear_slots == failed.caches[0].linear_slots[b].tolist()
        assert cache.commit_slots == failed.caches[0].commit_slots[b].tolist()


def test_a_failure_before_anything_is_known_leaves_a_dump(tmp_path: Path):
    path = write_dump(tmp_path, ValueError("early"), FailedStep())
    assert read_dump(path).failure["invariant"] is None
    assert replay(path) == []


def test_what_cannot_be_read_is_named_and_the_rest_is_kept(tmp_path: Path):
    failed = whole_step()
    failed.draws = failed.draws[:1]
    read = read_dump(write_dump(tmp_path, failure(), failed))
    assert len(read.unreadable) == 1
    assert read.unreadable[0].startswith("draws of request 1: IndexError")
    assert read.requests[0].draws is not None and read.requests[1].draws is None
    assert read.requests[1].path is not None


def test_a_run_holds_at_most_its_number_of_dumps(tmp_path: Path, monkeypatch, caplog):
    monkeypatch.setattr(dump, "MAX_DUMPS", 3)
    paths = [write_dump(tmp_path, failure(), FailedStep()) for _ in range(5)]
    assert paths[3:] == [None, None]
    assert sorted(tmp_path.iterdir()) == paths[:3]
    assert "no more in this run" in caplog.text


def test_token_ids_are_left_out_of_a_dump_that_would_be_too_large(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(dump, "MAX_DUMP_BYTES", 20_000)
    failed = whole_step(batch=1)
    failed.prompt_token_ids = [[12345] * 10_000]
    path = write_dump(tmp_path, failure(), failed)
    assert path.stat().st_size < 20_000
    read = read_dump(path)
    assert read.requests[0].prompt_token_ids is None
    assert "token ids: left out" in read.unreadable[0]


@pytest.mark.parametrize("broken", ["folder", "requests"])
def test_writing_a_dump_never_raises_over_the_failure_itself(tmp_path: Path, caplog, broken: str):
    folder = tmp_path / "file"
    failed = FailedStep()
    if broken == "folder":
        folder.write_text("")
    else:
        failed.requests = 3  # type: ignore[assignment]
    assert write_dump(folder, failure(), failed) is None
    assert len(caplog.records) == 1


def test_a_dump_holds_its_runs_manifest(tmp_path: Path):
    writer = TraceWriter(TraceConfig(str(tmp_path)), {"tree_width": 4}, seed=3)
    writer.close()
    path = write_dump(tmp_path, failure(), whole_step(), writer.manifest)
    assert path is not None
    manifest = read_dump(path).manifest
    assert (manifest["run"], manifest["seed"]) == (writer.folder.name, 3)
    assert manifest["configuration"] == {"tree_width": 4}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 9}, r"schema=9: .*which is 1"),
        ({"kind": "step"}, "kind is 'step'"),
        ({"requests": [{}]}, "no failure dump"),
    ],
)
def test_a_file_that_is_no_dump_is_refused(tmp_path: Path, capsys, change: dict, message: str):
    path = write_dump(tmp_path, failure(), whole_step())
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=message):
        replay(path)
    _assert_refused(path, capsys)


def test_a_tree_of_ragged_arrays_is_refused(tmp_path: Path):
    path = write_dump(tmp_path, failure(), whole_step())
    record = json.loads(path.read_text())
    record["requests"][0]["tree"]["parent"].pop()
    path.write_text(json.dumps(record))
    with pytest.raises(ValueError, match="a tree of 17 tokens"):
        replay(path)


def test_a_missing_dump_is_refused(tmp_path: Path, capsys):
    _assert_refused(tmp_path / "none.json", capsys)


def _assert_refused(path: Path, capsys) -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    assert command.run(parser.parse_args([str(path)])) == 2
    assert capsys.readouterr().err.startswith("eagle-pangu replay: ")
