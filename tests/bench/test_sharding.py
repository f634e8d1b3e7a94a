# SPDX-License-Identifier: Apache-2.0
"""Which rank measures what, and how the death of another is found."""

import fcntl
import os
import signal
import subprocess
import sys
from math import inf

import pytest

from vllm_eagle_pangu.bench import sharding
from vllm_eagle_pangu.bench.records import open_records, record_file
from vllm_eagle_pangu.bench.sharding import Rank, is_locked


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_every_prompt_has_one_owner(size):
    ranks = [Rank(rank, size) for rank in range(size)]
    for index in range(17):
        assert [rank.owns(index) for rank in ranks].count(True) == 1
        assert ranks[0].owner(index) == index % size


def test_the_rank_comes_from_torchruns_environment():
    assert Rank.from_environment({}) == Rank(0, 1)
    assert Rank.from_environment({"RANK": "3", "WORLD_SIZE": "4"}) == Rank(3, 4)
    for rank, size in (("4", "4"), ("-1", "2"), ("x", "2"), ("0", "0")):
        with pytest.raises(ValueError, match=f"RANK='{rank}'"):
            Rank.from_environment({"RANK": rank, "WORLD_SIZE": size})


def test_records_are_locked_while_their_rank_lives(tmp_path):
    path = record_file(tmp_path, 1)
    assert not is_locked(path)
    with open_records(path):
        assert is_locked(path)
    assert path.exists() and not is_locked(path)


RANK_1 = """
import subprocess, sys
from pathlib import Path
from vllm_eagle_pangu.bench.records import open_records
with open_records(Path(sys.argv[1])):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print(child.pid, flush=True)
    child.wait()
"""


@pytest.fixture
def working(tmp_path):
    """Rank 1 in its work, with a child that outlives it."""
    command = [sys.executable, "-c", RANK_1, str(record_file(tmp_path, 1))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    child = int(process.stdout.readline())
    assert is_locked(record_file(tmp_path, 1))
    yield process
    process.kill()
    process.wait()
    os.kill(child, signal.SIGKILL)


def test_a_process_that_was_killed_is_dead_though_its_child_lives(working, tmp_path):
    working.kill()
    working.wait()
    assert not is_locked(record_file(tmp_path, 1))


def test_waiting_ends_with_a_rank_that_dies_with_work_left(working, tmp_path, monkeypatch):
    looks = []

    def look_away(seconds):
        looks.append(seconds)
        working.kill()
        working.wait()

    monkeypatch.setattr(sharding.time, "sleep", look_away)
    sharding.wait_for_others(tmp_path, Rank(0, 3), lambda other: other == 2, appear_by=inf)
    assert len(looks) == 1


def test_a_rank_that_never_appears_is_waited_for_unless_it_had_nothing_to_do(tmp_path, monkeypatch):
    nobody, now = Rank(0, 2), iter(range(100))
    monkeypatch.setattr(sharding.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(sharding.time, "monotonic", lambda: next(now))
    sharding.wait_for_others(tmp_path, nobody, lambda other: False, appear_by=5)
    assert next(now) == 7
    sharding.wait_for_others(tmp_path, nobody, lambda other: True, appear_by=inf)


def test_a_folder_without_locks_is_refused(tmp_path, monkeypatch):
    def flock(file, operation):
        raise OSError("No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(ValueError, match=r"cannot lock a file .*; name one"):
        open_records(tmp_path / "x")
