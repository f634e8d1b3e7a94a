# SPDX-License-Identifier: Apache-2.0
"""Engines in processes of their own, several loaded at once, seen from the process that asks."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from vllm_eagle_pangu.measure.server import ProcessGroup, new_log, server_environment

STOP_TIMEOUT_S = 30.0
# pydantic lists every place that a value passed through; the first line says what is wrong.
_PYDANTIC = re.compile(r"\s*\[type=\w+, input_value=.*", re.S)


class EngineError(RuntimeError):
    """An engine that did not start, raised in a step, or died."""


class EngineHost:
    """One `vllm_eagle_pangu.bench.host` process. Made without waiting, so that several load."""

    def __init__(
        self, model: str, speculative: dict[str, Any] | None, options: dict[str, Any]
    ) -> None:
        self._group = ProcessGroup(
            [sys.executable, "-m", "vllm_eagle_pangu.bench.host"],
            os.environ | server_environment(),
            new_log("host"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._process = self._group.process
        self._ready = False
        start = {"model": model, "speculative": speculative, "options": options}
        self._send({"command": "start", **start})

    def wait(self) -> None:
        """Block until the engine is loaded. Raises EngineError with its reason."""
        if not self._ready:
            self._receive()
            self._ready = True

    def measure(
        self, requests: list[dict[str, Any]], forward_times: bool = False
    ) -> Iterator[dict[str, Any]]:
        """The figures of each request as soon as they are there. Raises EngineError."""
        self.wait()
        command = {"command": "measure", "requests": requests, "forward_times": forward_times}
        self._send(command)
        while (reply := self._receive())["event"] != "end":
            yield reply["figures"]

    def stop(self, patience_s: float = STOP_TIMEOUT_S) -> None:
        """End the process: at the end of its input, else by force."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience_s if self._ready else 0)
        self._group.stop()
        self._process.stdout.close()
        self._group.log.unlink(missing_ok=True)

    def _send(self, command: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise EngineError(self._last_words()) from error

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise EngineError(self._last_words())
        reply = json.loads(line)
        if reply["event"] == "failed":
            raise EngineError(_PYDANTIC.sub("", reply["error"]))
        return reply

    def _last_words(self) -> str:
        return f"the engine's process ended; its log: {self._group.log_excerpt()}"


class EnginePool:
    """At most `limit` engines, by name; those not asked for are ended when room is needed.

    An engine that failed once is not started again: its error is kept.
    """

    def __init__(self, model: str, options: dict[str, Any], limit: int) -> None:
        self._model, self._options, self._limit = model, options, limit
        self._hosts: dict[str, EngineHost] = {}
        self._failed: dict[str, str] = {}

    def load(self, wanted: dict[str, dict[str, Any] | None]) -> dict[str, str]:
        """Load an engine per name -> speculative config; the errors of those that failed."""
        assert len(wanted) <= self._limit, "groups are cut to the pool's limit"
        missing = [name for name in wanted if name not in self._hosts and name not in self._failed]
        idle = [name for name in self._hosts if name not in wanted]
        for name in idle[: max(0, len(self._hosts) + len(missing) - self._limit)]:
            self.end(name)
        for name in missing:
            self._hosts[name] = EngineHost(self._model, wanted[name], self._options)
        for name in missing:
            try:
                self._hosts[name].wait()
            except EngineError as error:
                self.fail(name, error)
        return {name: self._failed[name] for name in wanted if name in self._failed}

    def __contains__(self, name: str) -> bool:
        return name in self._hosts

    def __getitem__(self, name: str) -> EngineHost:
        return self._hosts[name]

    def fail(self, name: str, error: EngineError) -> None:
        """End an engine for good, for this reason."""
        self._failed[name] = str(error)
        self.end(name)

    def end(self, name: str, patience_s: float = STOP_TIMEOUT_S) -> None:
        host = self._hosts.pop(name, None)
        if host is not None:
            host.stop(patience_s)

    def close(self, patience_s: float = STOP_TIMEOUT_S) -> None:
        for name in list(self._hosts):
            self.end(name, patience_s)
