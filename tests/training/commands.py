# SPDX-License-Identifier: Apache-2.0
"""The command `train` in processes of its own, which a test may kill."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import torch

from vllm_eagle_pangu.cli import main

# Of a run on a machine that is busy with other things; a run that hangs ends here, as a failure.
PATIENCE_S = 300.0
MODULE = ("-m", "vllm_eagle_pangu.cli")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def write_config(path: Path, **sections) -> Path:
    """A training file: JSON is YAML."""
    path.write_text(json.dumps(sections))
    return path


def command(config: Path, *launcher: str) -> list[str]:
    return [sys.executable, *launcher, *MODULE, "train", "--config", str(config)]


def finish(config: Path, *launcher: str) -> None:
    """Run the command to its good end."""
    ended = subprocess.run(
        command(config, *launcher),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]


def finish_here(config: Path) -> None:
    """The same in this process, which has imported all of it: for what others are compared with."""
    threads = torch.get_num_threads()
    try:
        assert main(["train", "--config", str(config)]) == 0
    finally:
        torch.set_num_threads(threads)


@contextmanager
def started(argv: list[str], **options) -> Iterator[subprocess.Popen]:
    """A process; at the block's end all that it started and that still runs is killed, too."""
    options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True} | options
    with subprocess.Popen(argv, **options) as process:
        try:
            yield process
        finally:
            for one in family(process):
                kill(one)


def family(process: subprocess.Popen) -> list[psutil.Process]:
    """A process and all below it."""
    try:
        top = psutil.Process(process.pid)
        return [top, *top.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def kill(process: psutil.Process) -> None:
    """SIGKILL, which nobody can catch."""
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return


def wait_until(happened: Callable[[], bool], process: subprocess.Popen) -> None:
    """Look every few milliseconds; the process must be running when it happens."""
    end = time.monotonic() + PATIENCE_S
    while not happened():
        assert process.poll() is None, f"ended before:\n{process.communicate()[1][-4000:]}"
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.002)


def states(prepared: Path) -> list[Path]:
    """The files of hidden states that are there."""
    return sorted((prepared / "hidden_states").glob("hs_*.safetensors"))
