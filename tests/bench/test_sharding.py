# SPDX-License-Identifier: Apache-2.0
"""Which rank measures what, and how the death of another is found."""

import json
import os
import subprocess
import sys
import time

import pytest

from vllm_eagle_pangu.bench import sharding
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


def dead_process() -> dict:
    """What the marker of a process says that has ended."""
    code = "import os, psutil; print(os.getpid(), psutil.Process().create_time())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    pid, created = done.stdout.split()
    return {"pid": int(pid), "created": float(created), "finished": False}


def write_marker(folder, rank, **content):
    path = marker_file(folder, rank)
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"host": os.uname().nodename, **content}))
    return path


def test_a_process_that_ended_without_finishing_is_dead(tmp_path):
    write_marker(tmp_path, 1, **dead_process())
    assert state_of(tmp_path, 1) == "dead"


def test_another_process_with_the_same_number_is_not_it(tmp_path):
    write_marker(tmp_path, 1, pid=os.getpid(), created=1.0, finished=False)
    assert state_of(tmp_path, 1) == "dead"


def test_on_another_machine_silence_is_death(tmp_path):
    path = write_marker(tmp_path, 1, host="elsewhere", pid=1, created=1.0, finished=False)
    assert state_of(tmp_path, 1) == "alive"
    before = time.time() - 2 * sharding.SILENT_S
    os.utime(path, (before, before))
    assert state_of(tmp_path, 1) == "dead"


def test_waiting_ends_with_the_dead_ranks_named(tmp_path):
    write_marker(tmp_path, 1, **dead_process())
    write_marker(tmp_path, 2, pid=1, created=1.0, finished=True)
    assert wait_for_others(tmp_path, Rank(0, 3), lambda other: False) == [1]


def test_a_rank_that_never_appears_is_dead_unless_it_had_nothing_to_do(tmp_path):
    nobody = Rank(0, 2)
    assert wait_for_others(tmp_path, nobody, lambda other: False, appear_s=0.0) == [1]
    assert wait_for_others(tmp_path, nobody, lambda other: True) == []


def test_rank_0_forgets_the_markers_of_an_earlier_run(tmp_path):
    write_marker(tmp_path, 1, pid=1, created=1.0, finished=True)
    with Marker(tmp_path, Rank(0, 2)):
        assert state_of(tmp_path, 1) == "absent"
