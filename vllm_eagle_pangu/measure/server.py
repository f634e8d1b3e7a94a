# SPDX-License-Identifier: Apache-2.0
"""A `vllm serve` process of our own: started, waited for, and ended with all its children."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import psutil

from vllm_eagle_pangu.env import LEARNT_DIR
from vllm_eagle_pangu.serving import needs

START_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 20.0
LOG_LINES = 40
# vLLM's processes log much after the one error that matters.
FAILURE = re.compile(r"Traceback|Segfault|\bERROR\b")
COUNTER = re.compile(r"^vllm:spec_decode_num_(drafts|accepted_tokens)_total\{.*\} (\S+)$", re.M)


SERVED_NAME = "demo"
_FLAGS = (
    "--dtype=bfloat16",
    "--max-model-len=1024",
    "--max-num-seqs=4",
    # 128 MiB: a few servers stand beside each other, so that measurements can be interleaved.
    "--kv-cache-memory-bytes=134217728",
    # A repeated prompt is then as much work as the first time.
    "--no-enable-prefix-caching",
    # On any number of cores, so that every machine's demo measures the same.
    *needs.ONE_PROCESS_FLAGS,
    # What rounding is measured in, decoding and prefilling alike.
    "--logprobs-mode=raw_logits",
)
# On two cores compiling would take longer than the whole demo.
_CPU_FLAGS = ("--enforce-eager",)
# Servers side by side; a GPU's plain decoding needs its CUDA graphs to be no weakened baseline.
_GPU_FLAGS = ("--gpu-memory-utilization=0.25",)


def server_environment() -> dict[str, str]:
    """What is set for every server and engine on top of the caller's environment."""
    return {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        # What is measured does not depend on what was before, unless the caller says so.
        LEARNT_DIR: os.environ.get(LEARNT_DIR, ""),
        **needs.ONE_PROCESS,
        **needs.preload(os.environ),
    }


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def new_log(name: str) -> Path:
    handle, path = tempfile.mkstemp(prefix=f"eagle-pangu-{name}-", suffix=".log")
    os.close(handle)
    return Path(path)


def log_excerpt(log: Path) -> str:
    """From the first sign of failure, its end where there is none."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    failing = [index for index, line in enumerate(lines) if FAILURE.search(line)]
    start = failing[0] if failing else max(0, len(lines) - LOG_LINES)
    return "\n".join(lines[start : start + LOG_LINES])


@contextlib.contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """SIGTERM unwinds the stack like ctrl-C, once, so that servers and engines are ended."""

    def leave(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        # Once one came, another would break off what is ended or written because of it.
        if signal.getsignal(signal.SIGTERM) is leave:
            signal.signal(signal.SIGTERM, before)


class ProcessGroup:
    """A command in a session of its own, logging to a file."""

    def __init__(self, command: Sequence[str], environment: dict[str, str], log: Path) -> None:
        self.log = log
        with log.open("wb") as sink:
            self.process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def alive(self) -> bool:
        """Whether any process of the group is left, the leader's children included.

        Zombies do not count: an orphan's is collected by init, which in a container may take long.
        """
        self.process.poll()
        for process in psutil.process_iter(["status"]):
            with contextlib.suppress(ProcessLookupError):
                ours = os.getpgid(process.pid) == self.process.pid
                if ours and process.info["status"] != psutil.STATUS_ZOMBIE:
                    return True
        return False

    def stop(self) -> None:
        """End the whole group: politely, then by force.

        Raises:
            RuntimeError: a process survived both.
        """
        for number in (signal.SIGTERM, signal.SIGKILL):
            if not self.alive():
                return
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            deadline = time.monotonic() + STOP_TIMEOUT_S
            while self.alive() and time.monotonic() < deadline:
                time.sleep(0.05)
        if self.alive():
            raise RuntimeError(f"process group {self.process.pid} could not be ended")


@dataclass(eq=False)
class Server:
    """vLLM's OpenAI server on a free loopback port; a context manager.

    `speculative` is the value of --speculative-config, None for plain decoding; `flags` come behind
    those of all servers and win. Starting only launches the process, so that several can load at
    the same time; `wait` blocks until ready.
    """

    name: str
    target: Path
    speculative: dict[str, object] | None
    flags: Sequence[str] = ()
    port: int = field(default_factory=free_port)
    group: ProcessGroup | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        """The same for every method, by the device of this machine."""
        import torch

        vllm = Path(sys.executable).with_name("vllm")
        of_device = _GPU_FLAGS if torch.cuda.is_available() else _CPU_FLAGS
        line = [str(vllm), "serve", str(self.target), "--host=127.0.0.1", f"--port={self.port}"]
        line += [f"--served-model-name={SERVED_NAME}", *_FLAGS, *of_device, *self.flags]
        if self.speculative is not None:
            line += ["--speculative-config", json.dumps(self.speculative)]
        return line

    def start(self) -> "Server":
        environment = os.environ | server_environment()
        self.group = ProcessGroup(self.command(), environment, new_log(self.name))
        return self

    def wait(self) -> "Server":
        """Block until the server answers.

        Raises:
            RuntimeError: it died or took too long; leaving the context shows its log.
        """
        assert self.group is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._healthy():
            if self.group.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the server '{self.name}' did not start")
            time.sleep(0.2)
        return self

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                return answer.status == 200
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    def counters(self) -> tuple[float, float]:
        """Drafts proposed and draft tokens accepted since the server started."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as answer:
            found = dict(COUNTER.findall(answer.read().decode()))
        return float(found.get("drafts", 0)), float(found.get("accepted_tokens", 0))

    def stop(self, keep_log: bool = False) -> None:
        if self.group is None:
            return
        self.group.stop()
        if not keep_log:
            self.group.log.unlink(missing_ok=True)
        self.group = None

    def __enter__(self) -> "Server":
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        # Ctrl-C and sys.exit are no failures of the server.
        failed = kind is not None and issubclass(kind, Exception) and not self._healthy()
        if failed and self.group is not None:
            print(f"the server '{self.name}' is down; from {self.group.log}:", file=sys.stderr)
            print(log_excerpt(self.group.log), file=sys.stderr)
        self.stop(keep_log=failed)
