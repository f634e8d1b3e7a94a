# SPDX-License-Identifier: Apache-2.0
"""`python tests/run.py`: all tests, those that start engines in one process per file.

What an engine leaves behind then meets no other file: vLLM keeps the environment variables that it
has read and sets inductor's cache folder, and torch's thread state was once found changed. Starting
an engine keeps one core busy, so as many processes run as there are cores, up to four.

These processes are forks of one that has imported vLLM and done nothing else: importing takes ten
seconds.
"""

import argparse
import atexit
import gc
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import forkserver
from multiprocessing.connection import wait
from pathlib import Path
from unittest.mock import patch
from xml.etree import ElementTree

# Triton decides at import whether it interprets its kernels: processes of their own.
INTERPRETED = [
    "tests/triton_interpreted",
    *(f"tests/kernels/test_{ops}.py" for ops in ("accept_ops", "build_op", "commit_pages")),
    *("tests/kernels/test_draft_ops.py", "tests/kernels/test_tree_prune.py"),
]
NO_TESTS = 5
# An engine takes up to 4 GB.
MOST_AT_ONCE = 4
# Processes beside each other: a thread that waits for the others of its pool gives its core away.
PATIENT = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}
# What engine tests import; the first must come from vLLM, which prepares torch's import.
LOADED = ["vllm", "vllm.entrypoints.llm", "vllm.v1.worker.cpu_worker"]
# Read when Hugging Face's library is imported: before a test's conftest.py could say it.
OFFLINE = {"HF_HUB_OFFLINE": "1"}
FORKS = multiprocessing.get_context("forkserver")
# Starting a process looks for others that have ended, and takes their exit codes.
FORKS_LOCK = threading.Lock()


@dataclass
class Part:
    """One pytest process."""

    paths: list[str]
    marker: str
    environment: dict[str, str] = field(default_factory=dict)

    def forked(self) -> bool:
        """Of its own environment some is read when vLLM is imported."""
        return self.marker == "engine" and not self.environment

    def __str__(self) -> str:
        where = " ".join(self.paths) or "all tests"
        return " ".join([*(f"{k}={v}" for k, v in self.environment.items()), where, self.marker])


def parts(paths: list[str], **environment: str) -> list[Part]:
    """What starts no engine in one process, and a process for each file that does."""
    engines = [file for path in paths for file in test_files(Path(path)) if starts_engines(file)]
    return [
        Part(paths, "not engine", environment),
        *(Part([str(file)], "engine", environment) for file in engines),
    ]


def test_files(path: Path) -> list[Path]:
    return sorted(path.rglob("test_*.py")) if path.is_dir() else [path]


def starts_engines(file: Path) -> bool:
    """A file named in vain costs a process; one that is missed would never run."""
    return "mark.engine" in file.read_text()


def run(part: Part, seed: int, folder: Path, report: Path) -> int:
    """Pytest's exit status; what is compiled is kept in `folder`, for this run alone."""
    cache = report.with_suffix(".cache")
    share_model_infos(cache, folder)
    defaults = PATIENT | compiled(folder) | {"VLLM_CACHE_ROOT": str(cache)}
    environment = defaults | os.environ | part.environment
    options = [f"--randomly-seed={seed}", f"--junit-xml={report}", "-o", "junit_family=xunit1"]
    arguments = [*options, "-m", part.marker, *part.paths]
    said = report.with_suffix(".log")
    how = run_fork if part.forked() else run_process
    code = how(arguments, environment, said)
    print(f"\npytest: {part}\n{said.read_text(errors='replace').rstrip()}", flush=True)
    return code


def run_process(arguments: list[str], environment: dict[str, str], said: Path) -> int:
    command = [sys.executable, "-m", "pytest", *arguments]
    with said.open("wb") as log:
        return subprocess.run(
            command, env=environment, stdout=log, stderr=subprocess.STDOUT, check=False
        ).returncode


def run_fork(arguments: list[str], environment: dict[str, str], said: Path) -> int:
    process = FORKS.Process(target=pytest_in_fork, args=(arguments, environment, said))
    with FORKS_LOCK:
        process.start()
    wait([process.sentinel])
    with FORKS_LOCK:
        process.join()
    assert process.exitcode is not None
    return process.exitcode


def pytest_in_fork(arguments: list[str], environment: dict[str, str], said: Path) -> None:
    """As `python -m pytest` in a process of its own, its end included."""
    # A collection goes through all that was imported, half a second each.
    gc.freeze()
    with said.open("wb") as log:
        for number in (1, 2):
            os.dup2(log.fileno(), number)
    os.environ.update(environment)
    sys.argv = ["pytest", *arguments]
    import pytest

    code = pytest.main(arguments)
    # A fork ends without them: they remove temporary folders.
    atexit._run_exitfuncs()
    sys.exit(int(code))


def load_vllm(folder: Path) -> None:
    """Start the process that the forks come from."""
    defaults = {**PATIENT, **OFFLINE, **compiled(folder)}
    # As `python -m pytest`; else this file's folder, whose folders have the names of packages.
    sys.path[0] = os.getcwd()
    with patch.dict(os.environ, defaults | os.environ):
        FORKS.set_forkserver_preload(LOADED)
        forkserver.ensure_running()


def compiled(folder: Path) -> dict[str, str]:
    return {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}


def share_model_infos(cache: Path, folder: Path) -> None:
    """What vLLM learns of a model class: it starts a Python of its own to learn it."""
    infos = folder / "modelinfos"
    infos.mkdir(exist_ok=True)
    cache.mkdir()
    (cache / infos.name).symlink_to(infos, target_is_directory=True)


def outcomes(report: Path) -> tuple[Counter[str], list[str]]:
    """How many tests ended how, and the names of those that failed."""
    counts: Counter[str] = Counter()
    names = []
    for case in ElementTree.parse(report).iter("testcase"):
        ends = {end.tag for end in case} & {"failure", "error", "skipped"} or {"passed"}
        counts.update(ends)
        if ends & {"failure", "error"}:
            names.append(f"FAILED {case.get('file')}::{case.get('name')}")
    return counts, names


def run_all(todo: list[Part], seed: int) -> int:
    """Every part, whatever failed before; all failures once more at the end."""
    began, counts, failed = time.monotonic(), Counter[str](), []
    at_once = min(len(os.sched_getaffinity(0)), MOST_AT_ONCE)
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(at_once) as pool:
        folder = Path(name)
        if any(part.forked() for part in todo):
            load_vllm(folder)
        reports = [folder / f"{index}.xml" for index in range(len(todo))]
        codes = pool.map(lambda part, report: run(part, seed, folder, report), todo, reports)
        for part, report, code in zip(todo, reports, codes, strict=True):
            if report.exists():
                ended, names = outcomes(report)
                counts.update(ended)
                failed += names
            if code not in (0, NO_TESTS):
                failed.append(f"FAILED {part}: pytest ended with {code}")
    print("", *failed, sep="\n")
    total = ", ".join(f"{count} {end}" for end, count in sorted(counts.items())) or "no tests"
    minutes = (time.monotonic() - began) / 60
    print(f"{total} in {len(todo)} processes and {minutes:.1f} minutes; seed {seed}")
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the tests' order")
    parser.add_argument("paths", nargs="*", help="default: everything, interpreted kernels too")
    arguments = parser.parse_args()
    if arguments.paths:
        return run_all(parts(arguments.paths), arguments.seed)
    interpreted = parts(INTERPRETED, TRITON_INTERPRET="1")
    plain = [part for part in parts(["tests"]) if "triton_interpreted" not in part.paths[0]]
    # The longest first: what starts no engine.
    todo = sorted([*plain, *interpreted], key=lambda part: part.marker == "engine")
    return run_all(todo, arguments.seed)


if __name__ == "__main__":
    sys.exit(main())
