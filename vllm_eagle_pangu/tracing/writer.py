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
from collections.abc import Mapping, Sequence
from multiprocessing.util import Finalize
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vllm_eagle_pangu.core.paths import AcceptedPaths
from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.core.tree import TreeBatch
from vllm_eagle_pangu.tracing.bounded_lines import BoundedLines
from vllm_eagle_pangu.tracing.config import TraceConfig
from vllm_eagle_pangu.tracing.lines import StepEntry, compact, step_lines
from vllm_eagle_pangu.tracing.manifest import create_run_folder, new_manifest, utc_now, write_json
from vllm_eagle_pangu.tracing.schema import DUMPS, MANIFEST
from vllm_eagle_pangu.tracing.totals import RequestTotals

if TYPE_CHECKING:
    from vllm_eagle_pangu.tracing.dump import FailedStep

logger = logging.getLogger(__name__)

# Tree rows that may wait: some 3,000 steps of one tree of 17 rows, some 10 MB.
QUEUE_ROWS = 2**18
# What an entry weighs besides its rows, in rows.
ENTRY_ROWS = 64
FLUSH_SECONDS = 0.05
CLOSE_SECONDS = 10.0


class _Started(NamedTuple):
    time_us: int
    request: str


class _Ended(NamedTuple):
    time_us: int
    request: str
    prompt_tokens: int
    output_tokens: int


class TraceWriter:
    """The traces of this process, in a new run folder; `close` ends them, at exit at the latest.

    `configuration`, `seed`, `device`: for the manifest. `queue_rows`, `flush_seconds`: how much may
    wait for the writer's thread, and how long.

    The methods are for one thread, the engine's. Raises ValueError where the folder cannot be made.
    """

    def __init__(
        self,
        config: TraceConfig,
        configuration: Mapping[str, Any] | None = None,
        seed: int | None = None,
        device: str = "cpu",
        queue_rows: int = QUEUE_ROWS,
        flush_seconds: float = FLUSH_SECONDS,
    ) -> None:
        self.config = config
        self.folder = create_run_folder(config)
        run = self.folder.name
        self.manifest = new_manifest(run, config, configuration or {}, seed, device)
        self._lines = BoundedLines(self.folder, config.max_bytes)
        self._queue: deque[StepEntry | _Started | _Ended] = deque()
        self._queue_rows, self._flush_seconds = queue_rows, flush_seconds
        # Rows put in, counted by the engine's thread, and taken out, counted by the writer's.
        self._rows_in = self._rows_out = 0
        self._queue_full = self._failed = 0
        self._totals: dict[str, RequestTotals] = {}
        self._origin = time.perf_counter()
        self._write_manifest()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="eagle-pangu-traces", daemon=True)
        self._thread.start()
        # Unlike atexit this also runs in a process that multiprocessing forked.
        self._at_exit = Finalize(None, self._close, exitpriority=0)

    def wants(self, request: str) -> bool:
        """Whether lines are written for this request; the same in every process."""
        return self.config.samples(request)

    def now_us(self, now: float | None = None) -> int:
        """Microseconds from the start of the run to `now`, of `time.perf_counter`."""
        return int(((time.perf_counter() if now is None else now) - self._origin) * 1e6)

    def request_started(self, request: str) -> None:
        """Without this call a request starts with its first tree."""
        if self.wants(request):
            self._put(_Started(self.now_us(), request), ENTRY_ROWS)

    def step(
        self,
        step: int,
        requests: Sequence[str],
        tree: TreeBatch,
        paths: AcceptedPaths,
        # [T] committed tokens before each root
        prefix_len: Sequence[int],
        shapes: Sequence[TreeShape],
        batch_size: int,
        stage_us: Mapping[str, float],
    ) -> None:
        """Trace a step of T trees, `requests[i]` being the id of tree i; microseconds, no waiting.

        `shapes: [T]`, as drafted; `batch_size`: requests in the step, with and without a
        tree; `stage_us`: stage times of the whole batch, each name ending in `_us`.

        Everything is kept by reference until it is written: nothing handed over may be written to
        afterwards, and tensors are on the CPU.
        """
        assert tree.tokens.is_cpu and len(requests) == tree.batch_size, tree.tokens.device
        now = self.now_us()
        entry = StepEntry(
            now, step, batch_size, requests, prefix_len, shapes, tree, paths, stage_us
        )
        self._put(entry, tree.tokens.numel() + ENTRY_ROWS)

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
        if self.wants(request):
            ended = _Ended(self.now_us(ended_at), request, prompt_tokens, output_tokens)
            self._put(ended, ENTRY_ROWS)

    def dump(self, error: BaseException, failed: "FailedStep") -> Path | None:
        """Write a failure dump into the run folder; see `dump.write_dump`."""
        from vllm_eagle_pangu.tracing.dump import write_dump

        return write_dump(self.folder / DUMPS, error, failed, self.manifest)

    def close(self) -> None:
        """Write what is waiting, and the end into the manifest; later calls trace nothing."""
        self._at_exit()

    def _close(self) -> None:
        self._closing.set()
        self._thread.join(CLOSE_SECONDS)
        self.manifest["ended_at"] = utc_now()
        self._write_manifest()

    def _put(self, entry: StepEntry | _Started | _Ended, rows: int) -> None:
        # Ends and starts are small and few, and sums need them: they get twice the room.
        room = self._queue_rows if isinstance(entry, StepEntry) else 2 * self._queue_rows
        if self._rows_in - self._rows_out + rows > room or self._closing.is_set():
            self._queue_full += self._lines_of(entry)
            return
        self._rows_in += rows
        self._queue.append(entry)

    def _lines_of(self, entry: StepEntry | _Started | _Ended) -> int:
        if isinstance(entry, StepEntry):
            return sum(map(self.wants, entry.requests))
        return int(isinstance(entry, _Ended))

    def _run(self) -> None:
        closing = False
        while not closing:
            closing = self._closing.wait(self._flush_seconds)
            self._drain()
        self._lines.close()

    def _drain(self) -> None:
        while self._queue:
            entry = self._queue.popleft()
            try:
                rows = self._write(entry)
            except Exception:
                if not self._failed:
                    logger.warning("traces: a step could not be written", exc_info=True)
                self._failed += self._lines_of(entry)
                rows = entry.tree.tokens.numel() if isinstance(entry, StepEntry) else 0
            self._rows_out += rows + ENTRY_ROWS
        self._lines.flush()

    def _write(self, entry: StepEntry | _Started | _Ended) -> int:
        """Add the lines of `entry`; returns its tree rows."""
        if isinstance(entry, StepEntry):
            self._write_step(entry)
            return entry.tree.tokens.numel()
        if isinstance(entry, _Started):
            self._totals[entry.request] = RequestTotals(entry.time_us)
            return 0
        totals = self._totals.pop(entry.request, None) or RequestTotals(entry.time_us)
        record = totals.record(
            entry.request, entry.prompt_tokens, entry.output_tokens, entry.time_us
        )
        self._lines.add_request(compact(record).encode() + b"\n")
        return 0

    def _write_step(self, entry: StepEntry) -> None:
        for line in step_lines(entry, self.wants):
            totals = self._totals.get(line.request)
            if totals is None:
                totals = self._totals[line.request] = RequestTotals(entry.time_us)
            totals.add(line.nodes, line.accepted)
            self._lines.add_step(line.text)

    def _write_manifest(self) -> None:
        lines = self._lines
        dropped = {"queue_full": self._queue_full, **lines.dropped}
        dropped["failed"] += self._failed
        counts = {
            "lines_written": lines.written,
            "lines_dropped": dropped,
            "truncated": lines.truncated,
        }
        try:
            write_json(self.folder / MANIFEST, {**self.manifest, **counts})
        except OSError as error:
            logger.warning("traces: %s", error)
