# SPDX-License-Identifier: Apache-2.0
"""Records survive a kill, and errors give way to measurements."""

import fcntl
import json

import pytest

from vllm_eagle_pangu.bench.records import (
    COUNTS,
    RECORDS,
    Key,
    key_of,
    open_records,
    read_records,
    write_counts,
)


def record(prompt, repeat=0, **content):
    key = Key("E1", "batch-1", "plain", 0.0, prompt, 0, repeat)
    counts = dict.fromkeys(COUNTS, 1)
    return {**key._asdict(), **counts, "output_ids": [1, 2], **content}


def append(folder, *records):
    with open_records(folder) as file:
        file.writelines(json.dumps(one) + "\n" for one in records)


def test_times_are_not_in_the_counts(tmp_path):
    for name, seconds in (("a", 1.0), ("b", 2.0)):
        write_counts([record("p", seconds=seconds)], tmp_path / name)
    assert (tmp_path / "a").read_text() == (tmp_path / "b").read_text()
    write_counts([record("p", output_ids=[1, 3])], tmp_path / "c")
    assert (tmp_path / "a").read_text() != (tmp_path / "c").read_text()


def test_a_line_that_a_kill_cut_is_passed_over_and_then_taken_off(tmp_path):
    append(tmp_path, record("a"))
    path = tmp_path / RECORDS
    path.write_text(path.read_text() + json.dumps(record("b"))[:30])
    assert [key[4] for key in read_records(tmp_path)] == ["a"]
    append(tmp_path, record("c"))
    assert [key[4] for key in read_records(tmp_path)] == ["a", "c"]


def test_a_measurement_replaces_an_error_and_no_error_a_measurement(tmp_path):
    failed = key_of(record("a"))._asdict() | {"error": "no engine"}
    append(tmp_path, failed, record("a", tau=3))
    append(tmp_path, failed)
    (found,) = read_records(tmp_path).values()
    assert found["tau"] == 3
    assert key_of(found) == key_of(failed)


def test_records_are_locked_till_they_are_closed(tmp_path):
    with (
        open_records(tmp_path),
        (tmp_path / RECORDS).open() as other,
        pytest.raises(BlockingIOError),
    ):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    open_records(tmp_path).close()


def test_a_folder_without_locks_is_refused(tmp_path, monkeypatch):
    def flock(file, operation):
        raise OSError("No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(ValueError, match=r"cannot lock a file .*; name one"):
        open_records(tmp_path)
