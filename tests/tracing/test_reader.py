# SPDX-License-Identifier: Apache-2.0
import json
import os
from pathlib import Path

import pytest

from vllm_eagle_pangu.tracing.reader import find_run, read_manifest, read_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "manifest.json").write_text('{"schema": 1}')
    lines = [json.dumps({"schema": 1, "kind": "step", "step": step}) for step in range(3)]
    (tmp_path / "steps.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


def steps(run: Path) -> list[int]:
    return [record["step"] for record in read_run(run)]


def test_a_run_without_request_lines_is_read(run: Path):
    assert steps(run) == [0, 1, 2]


@pytest.mark.parametrize("cut", [1, 2, 10, 30])
def test_a_cut_last_line_is_passed_over(run: Path, cut: int):
    path = run / "steps.jsonl"
    os.truncate(path, path.stat().st_size - cut)
    assert steps(run) == ([0, 1, 2] if cut == 1 else [0, 1])


def test_a_broken_line_that_is_not_the_last_is_named(run: Path):
    lines = (run / "steps.jsonl").read_text().splitlines(keepends=True)
    (run / "steps.jsonl").write_text(lines[0] + lines[1][:5] + "\n" + lines[2])
    with pytest.raises(ValueError, match=r"steps\.jsonl:2"):
        steps(run)


@pytest.mark.parametrize("name", ["manifest.json", "steps.jsonl"])
@pytest.mark.parametrize("found", [2, None])
def test_another_schema_is_refused_with_both_versions_and_the_mend(run: Path, name: str, found):
    text = (run / name).read_text().replace('"schema": 1', f'"schema": {json.dumps(found)}')
    (run / name).write_text(text)
    with pytest.raises(ValueError) as refused:
        steps(run)
    message = str(refused.value)
    assert f"schema={found!r}" in message and str(run / name) in message
    assert "reads, which is 1; read it with" in message


def test_of_several_runs_the_latest_are_named_oldest_first(run: Path, tmp_path_factory):
    folder = tmp_path_factory.mktemp("traces")
    for name in ("20260102T000000.000000Z-7", "20260101T000000.000000Z-9"):
        (folder / name).mkdir()
        (folder / name / "manifest.json").write_text("{}")
    with pytest.raises(ValueError, match=r"2 runs in it.* the last are 20260101.*20260102"):
        find_run(folder)
    assert find_run(run) == run


def test_a_folder_without_runs_is_refused(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="trace_dir"):
        find_run(tmp_path)


def test_a_manifest_that_is_no_object_is_named(run: Path):
    (run / "manifest.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"manifest\.json.*list"):
        read_manifest(run)
