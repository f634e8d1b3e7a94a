# SPDX-License-Identifier: Apache-2.0
"""Engines in processes of their own, several loaded at once, seen from the process that asks.

Between requests an engine's process waits in a read and takes no processor time. The end of its
pipe ends it, so it does not outlive the process that asks.
"""

import contextlib
import multiprocessing
import os
import re
import signal
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from vllm_eagle_pangu.measure.engine import Engine
from vllm_eagle_pangu.measure.server import log_excerpt, new_log, server_environment

WARM_UP_TOKENS = 32
# Before each block: the engine's weights and buffers come back into the processor's caches.
BLOCK_WARM_UP_TOKENS = 8
STOP_TIMEOUT_S = 30.0
# pydantic lists every place that a value passed through; the first line says what is wrong.
_PYDANTIC = re.compile(r"\s*\[type=\w+, input_value=.*", re.S)

# id, ids, params
Request = dict[str, Any]


class EngineError(RuntimeError):
    """An engine that did not start, raised in a step, or died."""


def _serve(
    pipe: Connection, log: Path, model: str, speculative: Any, options: dict[str, Any]
) -> None:
    """The engine's process. Whatever is raised is the experiment's result, and not its end."""
    # ctrl-C is for the process that asks; it ends its engines.
    os.setsid()
    with log.open("wb") as sink:
        os.dup2(sink.fileno(), 1)
        os.dup2(sink.fileno(), 2)
    try:
        engine = Engine(model, speculative, **options)
    except Exception as error:
        pipe.send(_said(error))
        return
    pipe.send(None)
    warm = WARM_UP_TOKENS
    with engine, contextlib.suppress(EOFError):
        while True:
            requests, forward_times = pipe.recv()
            try:
                first = requests[0]["ids"]
                engine.generate([first], max_tokens=warm, ignore_eos=True)
                warm = BLOCK_WARM_UP_TOKENS
                for one in requests:
                    timed = one["id"], one["ids"], forward_times
                    pipe.send(engine.measure(*timed, **one["params"]))
            except Exception as error:
                pipe.send(_said(error))


def _said(error: Exception) -> str:
    return _PYDANTIC.sub("", f"{type(error).__name__}: {error}")


class EngineHost:
    """One engine's process. Made without waiting, so that several load."""

    def __init__(
        self, model: str, speculative: dict[str, Any] | None, options: dict[str, Any]
    ) -> None:
        self._log = new_log("host")
        self._ready = False
        new = multiprocessing.get_context("spawn")
        self._pipe, theirs = new.Pipe()
        arguments = (theirs, self._log, model, speculative, options)
        self._process = new.Process(target=_serve, args=arguments)
        # Of a process, what is preloaded and vLLM's variables must be set before it starts.
        os.environ.update(server_environment())
        self._process.start()
        theirs.close()

    def wait(self) -> None:
        """Block until the engine is loaded. Raises EngineError with its reason."""
        self._receive()
        self._ready = True

    def measure(
        self, requests: list[Request], forward_times: bool = False
    ) -> Iterator[dict[str, Any]]:
        """The figures of each request as soon as they are there. Raises EngineError."""
        with contextlib.suppress(BrokenPipeError):
            self._pipe.send((requests, forward_times))
        for _ in requests:
            yield self._receive()

    def stop(self, patience_s: float = STOP_TIMEOUT_S) -> None:
        """End the process: at the end of its pipe, else by force."""
        self._pipe.close()
        self._process.join(patience_s if self._ready else 0)
        group = self._process.pid
        if self._process.is_alive() and group:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
            self._process.kill()
            self._process.join()
        self._log.unlink(missing_ok=True)

    def _receive(self) -> Any:
        try:
            reply = self._pipe.recv()
        except (EOFError, ConnectionResetError) as error:
            said = f"the engine's process ended; its log: {log_excerpt(self._log)}"
            raise EngineError(said) from error
        if isinstance(reply, str):
            raise EngineError(reply)
        return reply


class EnginePool:
    """At most `limit` engines, by name; those not asked for are ended when room is needed.

    An engine that failed once is not started again: its error is kept.
    """

    def __init__(self, model: str, options: dict[str, Any], limit: int) -> None:
        self._model, self._options, self._limit = model, options, limit
        self.hosts: dict[str, EngineHost] = {}
        self._failed: dict[str, str] = {}

    def load(self, wanted: dict[str, dict[str, Any] | None]) -> dict[str, str]:
        """Load an engine per name -> speculative config; the errors of those that failed."""
        assert len(wanted) <= self._limit, "groups are cut to the pool's limit"
        missing = [name for name in wanted if name not in self.hosts and name not in self._failed]
        idle = [name for name in self.hosts if name not in wanted]
        for name in idle[: max(0, len(self.hosts) + len(missing) - self._limit)]:
            self.end(name)
        for name in missing:
            self.hosts[name] = EngineHost(self._model, wanted[name], self._options)
        for name in missing:
            try:
                self.hosts[name].wait()
            except EngineError as error:
                self.fail(name, error)
        return {name: self._failed[name] for name in wanted if name in self._failed}

    def fail(self, name: str, error: EngineError) -> None:
        """End an engine for good, for this reason."""
        self._failed[name] = str(error)
        self.end(name)

    def end(self, name: str, patience_s: float = STOP_TIMEOUT_S) -> None:
        host = self.hosts.pop(name, None)
        if host is not None:
            host.stop(patience_s)

    def close(self, patience_s: float = STOP_TIMEOUT_S) -> None:
        for name in list(self.hosts):
            self.end(name, patience_s)
