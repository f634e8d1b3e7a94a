# SPDX-License-Identifier: Apache-2.0
"""Writes a run's traces from a thread of its own, so that the engine's only hands over references.

The engine's thread appends to a bounded queue and never waits. The writer's thread looks at the
queue a few times a second, for waking it at each step would cost the engine more than the step's
lines do; it makes the lines, writes them together, and gives up rather than fall behind.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing.util import Finalize
from typing import Any

from vllm_eagle_pangu.tracing.bounded_lines import BoundedLines
from vllm_eagle_pangu.tracing.config import TraceConfig
from vllm_eagle_pangu.tracing.lines import RequestTotals, StepEntry, step_records
from vllm_eagle_pangu.tracing.manifest import start_run, utc_now, write_json
from vllm_eagle_pangu.tracing.schema import MANIFEST

logger = logging.getLogger(__name__)

# Tree rows that may wait: some 3,000 steps of one tree of 17 rows, some 10 MB.
QUEUE_ROWS = 2**18
# What an entry weighs besides its rows, in rows.
ENTRY_ROWS = 64
FLUSH_SECONDS = 0.05
CLOSE_SECONDS = 10.0


class TraceWriter:
    """The traces of this process, in a new run folder; `close` ends them, at exit at the latest.

    `configuration`, `seed`, `device`: for the manifest.

    The methods are for one thread, the engine's. Raises ValueError where the folder cannot be made.
    """

    def __init__(
        self,
        config: TraceConfig,
        configuration: Mapping[str, Any] | None = None,
        seed: int | None = None,
        device: str = "cpu",
    ) -> None:
        self.config = config
        self.folder, self.manifest = start_run(config, configuration or {}, seed, device)
        self._lines = BoundedLines(self.folder, config.max_bytes)
        self._queue: deque[tuple[Callable[[], None], Sequence[str], int]] = deque()
        # Rows put in, counted by the engine's thread, and taken out, counted by the writer's.
        self._rows_in = self._rows_out = 0
        self._totals: dict[str, RequestTotals] = {}
        self._origin = time.perf_counter()
        self._write_manifest()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="eagle-pangu-traces", daemon=True)
        self._thread.start()
        # Unlike atexit this also runs in a process that multiprocessing forked.
        self._at_exit = Finalize(None, self._close, exitpriority=0)

    def now_us(self, now: float | None = None) -> int:
        """Microseconds from the start of the run to `now`, of `time.perf_counter`."""
        return int(((time.perf_counter() if now is None else now) - self._origin) * 1e6)

    def request_started(self, request: str) -> None:
        """Without this call a request starts with its first tree."""
        if self.config.samples(request):
            start = partial(self._totals.__setitem__, request, RequestTotals(self.now_us()))
            self._put(start, ())

    def step(self, entry: StepEntry) -> None:
        """Trace a step; microseconds, no waiting."""
        self._put(partial(self._write_step, entry), entry.requests, entry.tree.tokens.numel())

    def request_ended(
        self,
        request: str,
        prompt_tokens: int,
        output_tokens: int,
        ended_at: float | None = None,
    ) -> None:
        """Trace the end of a request, whether or not it ever had a tree.

        `ended_at`: of `time.perf_counter`, where the end is learnt of later; now by default.
        """
        if self.config.samples(request):
            ended_us = self.now_us(ended_at)
            end = partial(self._write_request, request, prompt_tokens, output_tokens, ended_us)
            self._put(end, (request,))

    def close(self) -> None:
        """Write what is waiting, and the end into the manifest; later calls trace nothing."""
        self._at_exit()

    def _close(self) -> None:
        self._closing.set()
        self._thread.join(CLOSE_SECONDS)
        self.manifest["ended_at"] = utc_now()
        self._write_manifest()

    def _put(self, write: Callable[[], None], requests: Sequence[str], rows: int = 0) -> None:
        """For the writer's thread: `write` adds lines of those `requests` that are wanted.

        `rows`: of a step's trees. Ends and starts have none, are few, and sums need them: they get
        twice the room.
        """
        weight, room = rows + ENTRY_ROWS, QUEUE_ROWS if rows else 2 * QUEUE_ROWS
        if self._rows_in - self._rows_out + weight > room or self._closing.is_set():
            self._lines.dropped["queue_full"] += sum(map(self.config.samples, requests))
            return
        self._rows_in += weight
        self._queue.append((write, requests, weight))

    def _run(self) -> None:
        closing = False
        while not closing:
            closing = self._closing.wait(FLUSH_SECONDS)
            self._drain()
        self._lines.close()

    def _drain(self) -> None:
        while self._queue:
            write, requests, weight = self._queue.popleft()
            try:
                write()
            except Exception:
                if not self._lines.dropped["failed"]:
                    logger.warning("traces: a step could not be written", exc_info=True)
                self._lines.dropped["failed"] += sum(map(self.config.samples, requests))
            self._rows_out += weight
        self._lines.flush()

    def _write_step(self, entry: StepEntry) -> None:
        for record in step_records(entry, self.config.samples):
            totals = self._totals.setdefault(record["request"], RequestTotals(entry.time_us))
            totals.add(record)
            self._lines.add("steps", record)

    def _write_request(
        self, request: str, prompt_tokens: int, output_tokens: int, ended_us: int
    ) -> None:
        totals = self._totals.pop(request, None) or RequestTotals(ended_us)
        self._lines.add("requests", totals.record(request, prompt_tokens, output_tokens, ended_us))

    def _write_manifest(self) -> None:
        lines = self._lines
        counts = {
            "lines_written": lines.written,
            "lines_dropped": lines.dropped,
            "truncated": lines.truncated,
        }
        try:
            write_json(self.folder / MANIFEST, {**self.manifest, **counts})
        except OSError as error:
            logger.warning("traces: %s", error)
