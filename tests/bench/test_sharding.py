# SPDX-License-Identifier: Apache-2.0
"""Which rank measures what, and how the death of another is found."""

import fcntl
import os
import signal
import subprocess
import sys

import pytest

from vllm_eagle_pangu.bench.sharding import Marker, Rank, marker_file, state_of, wait_for_others


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


def test_a_marker_tells_alive_from_finished_and_from_absent(tmp_path):
    assert state_of(tmp_path, 1) == "absent"
    with Marker(tmp_path, Rank(1, 2)) as marker:
        assert state_of(tmp_path, 1) == "alive"
        marker.finish()
    assert state_of(tmp_path, 1) == "finished"


RANK_1 = """
import subprocess, sys
from pathlib import Path
from vllm_eagle_pangu.bench.sharding import Marker, Rank
with Marker(Path(sys.argv[1]), Rank(1, 3)):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print(child.pid, flush=True)
    child.wait()
"""


@pytest.fixture
def killed(tmp_path):
    """The marker of rank 1, which was killed in its work and left a child."""
    command = [sys.executable, "-c", RANK_1, str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    child = int(process.stdout.readline())
    assert state_of(tmp_path, 1) == "alive"
    process.kill()
    process.wait()
    yield marker_file(tmp_path, 1)
    os.kill(child, signal.SIGKILL)


def test_a_process_that_ended_without_finishing_is_dead_though_its_child_lives(killed, tmp_path):
    assert state_of(tmp_path, 1) == "dead"


def test_waiting_ends_with_the_dead_ranks_named(killed, tmp_path):
    with Marker(tmp_path, Rank(2, 3)) as marker:
        marker.finish()
    assert wait_for_others(tmp_path, Rank(0, 3), lambda other: False) == [1]


def test_a_rank_that_never_appears_is_dead_unless_it_had_nothing_to_do(tmp_path):
    nobody = Rank(0, 2)
    assert wait_for_others(tmp_path, nobody, lambda other: False, appear_s=0.0) == [1]
    assert wait_for_others(tmp_path, nobody, lambda other: True) == []


def test_rank_0_forgets_the_markers_of_an_earlier_run_and_of_no_one_that_lives(killed, tmp_path):
    with Marker(tmp_path, Rank(2, 3)) as marker:
        marker.finish()
    with Marker(tmp_path, Rank(3, 4)), Marker(tmp_path, Rank(0, 4)):
        found = [state_of(tmp_path, other) for other in (1, 2, 3)]
    assert found == ["absent", "absent", "alive"]


def test_a_folder_without_locks_is_refused(tmp_path, monkeypatch):
    def flock(file, operation):
        raise OSError("No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(ValueError, match=r"cannot lock a file .*; name one"):
        Marker(tmp_path, Rank(0, 1))
