# SPDX-License-Identifier: Apache-2.0
"""Real engines: resuming a run that was killed midway gives the table of a whole run."""

import contextlib
import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from vllm_eagle_pangu.bench.records import RECORDS

pytestmark = pytest.mark.engine

COMMAND = """
import argparse, sys
from vllm_eagle_pangu.bench.command import add_arguments, run
parser = argparse.ArgumentParser()
add_arguments(parser)
sys.exit(run(parser.parse_args()))
"""
# Goes on with a run, then a whole one by the engines that it has loaded: most of a run's time.
RESUME_AND_WHOLE = """
import argparse, sys
from vllm_eagle_pangu.bench import session
from vllm_eagle_pangu.bench.command import add_arguments, run

EnginePool, pools = session.EnginePool, {}

def pool(*given):
    if repr(given) not in pools:
        pools[repr(given)] = EnginePool(*given)
    return pools[repr(given)]

close, EnginePool.close = EnginePool.close, lambda self, **patience: None
session.EnginePool = pool
parser = argparse.ArgumentParser()
add_arguments(parser)
config, killed, whole = sys.argv[1:]
codes = [run(parser.parse_args([f"--config={config}", *words]))
         for words in ([f"--out={killed}", "--resume"], [f"--out={whole}"])]
(kept,) = pools.values()
close(kept)
sys.exit(max(codes))
"""
PROMPTS, REPEATS, METHODS = 8, 2, 2
TIMEOUT_S = 900.0


@pytest.fixture
def config(tiny_pangu, tiny_head, tmp_path) -> Path:
    prompts = tmp_path / "prompts.jsonl"
    text = "The head drafts a tree and the target accepts one path of it."
    texts = [text[start:] for start in range(PROMPTS)]
    lines = [json.dumps({"id": f"p{i}", "prompt": text}) for i, text in enumerate(texts)]
    prompts.write_text("\n".join(lines))
    path = tmp_path / "bench.yaml"
    content = {
        **{"target": str(tiny_pangu), "head": str(tiny_head), "repeats": REPEATS, "tokens": 12},
        "hosts": METHODS,
        "engine": {"dtype": "float32", "max_model_len": 128, "max_num_batched_tokens": 128},
        "prompts": {"path": str(prompts), "choice": "first", "count": PROMPTS},
        "throughput": {"chains": [], "trees": [[2, 3, 6]]},
    }
    path.write_text(yaml.safe_dump(content))
    return path


def started(program: str, *words: str | Path) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, words)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen) -> tuple[int, str]:
    _, errors = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, errors


def kill_after_first_record(process: subprocess.Popen, path: Path) -> None:
    """Looks five times a second: a busy loop would take a core from the engines."""
    deadline = time.monotonic() + TIMEOUT_S
    while not path.exists() or not path.read_bytes().count(b"\n"):
        assert time.monotonic() < deadline
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.2)
            raise AssertionError(process.communicate())
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_a_killed_run_is_resumed_to_the_table_of_a_whole_one(config, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    broken = started(COMMAND, f"--config={config}", f"--out={killed}")
    kill_after_first_record(broken, killed / RECORDS)
    left = (killed / RECORDS).read_bytes()
    assert 0 < left.count(b"\n") < PROMPTS * REPEATS * METHODS

    code, errors = ended(started(RESUME_AND_WHOLE, config, killed, whole))
    assert code == 0, errors
    assert (killed / RECORDS).read_bytes().startswith(left), "what was there is not measured again"
    assert (whole / RECORDS).read_bytes().count(b"\n") == PROMPTS * REPEATS * METHODS
    assert (killed / RECORDS).read_bytes().count(b"\n") == PROMPTS * REPEATS * METHODS
    assert (killed / "counts.csv").read_text() == (whole / "counts.csv").read_text()
    with (killed / "counts.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == PROMPTS * REPEATS * METHODS
    trees = [row for row in rows if row["method"].startswith("tree")]
    assert all(int(row["accepted"]) > 0 for row in trees)
    plain = {row["prompt"]: row["output"] for row in rows if row["method"] == "plain"}
    assert all(row["output"] == plain[row["prompt"]] for row in trees)
