# SPDX-License-Identifier: Apache-2.0
"""Runs that end without `close`: each in a process of its own."""

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

from vllm_eagle_pangu.tracing import writer as writer_module
from vllm_eagle_pangu.tracing.config import TraceConfig
from vllm_eagle_pangu.tracing.reader import find_run, read_manifest, read_run
from vllm_eagle_pangu.tracing.writer import TraceWriter

PROGRAM = """
import sys
from vllm_eagle_pangu.tracing import writer as writer_module
from vllm_eagle_pangu.tracing.config import TraceConfig

writer_module.FLUSH_SECONDS = 3600.0
writer = writer_module.TraceWriter(TraceConfig(sys.argv[1]))
writer.request_ended("a", 1, 1)
raise SystemExit(3)
"""


def test_the_end_of_the_interpreter_flushes_and_closes(tmp_path: Path):
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], check=False, timeout=600)
    assert done.returncode == 3
    _assert_closed(tmp_path)


def test_the_end_of_a_forked_process_flushes_and_closes(tmp_path: Path):
    """Regression: such processes, vLLM's engine cores among them, never run atexit."""
    child = multiprocessing.get_context("fork").Process(target=_trace, args=(tmp_path,))
    child.start()
    child.join(600)
    assert child.exitcode == 0
    _assert_closed(tmp_path)


def test_a_fork_does_not_close_its_parents_run(tmp_path: Path):
    writer = TraceWriter(TraceConfig(str(tmp_path)))
    child = multiprocessing.get_context("fork").Process(target=os.getpid)
    child.start()
    child.join(600)
    assert read_manifest(writer.folder)["ended_at"] is None
    writer.close()


def _trace(folder: Path) -> None:
    writer_module.FLUSH_SECONDS = 3600.0
    writer = TraceWriter(TraceConfig(str(folder)))
    writer.request_ended("a", 1, 1)


def _assert_closed(folder: Path) -> None:
    run = find_run(folder)
    assert read_manifest(run)["ended_at"] is not None
    assert [record["request"] for record in read_run(run)] == ["a"]
