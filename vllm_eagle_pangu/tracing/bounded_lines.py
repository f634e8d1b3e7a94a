# SPDX-License-Identifier: Apache-2.0
"""`steps.jsonl` and `requests.jsonl` of a run, bounded in size."""

import logging
from pathlib import Path

from vllm_eagle_pangu.tracing.schema import REQUESTS, STEPS

logger = logging.getLogger(__name__)

# What steps leave free for the lines of requests: some thousands of them.
MOST_RESERVE = 2**20


class BoundedLines:
    """Collects lines until `flush`; both files together never exceed `max_bytes`.

    Steps stop for good at the first that does not fit, some space before the end: the lines of
    requests go on there. `written` counts lines in the files by kind, `dropped` those given up, by
    reason: beyond `max_bytes`, or `failed` because a file could not be written.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.step_bytes = max_bytes - min(MOST_RESERVE, max_bytes // 8)
        self.bytes = 0
        self.truncated = False
        self.written = {"steps": 0, "requests": 0}
        self.dropped = {"max_bytes": 0, "failed": 0}
        self._failed = False
        self._pending: dict[str, list[bytes]] = {"steps": [], "requests": []}
        self._files = {
            "steps": open(folder / STEPS, "ab"),  # noqa: SIM115
            "requests": open(folder / REQUESTS, "ab"),  # noqa: SIM115
        }

    def add_step(self, line: bytes) -> None:
        self.truncated = self.truncated or self.bytes + len(line) > self.step_bytes
        self._add("steps", line, fits=not self.truncated)

    def add_request(self, line: bytes) -> None:
        fits = self.bytes + len(line) <= self.max_bytes
        self.truncated = self.truncated or not fits
        self._add("requests", line, fits)

    def flush(self) -> None:
        """Write what was added; after an error, which is logged once, nothing more is written."""
        for kind, lines in self._pending.items():
            if not lines:
                continue
            try:
                if not self._failed:
                    self._files[kind].write(b"".join(lines))
                    self._files[kind].flush()
            except OSError as error:
                self._failed = True
                logger.warning("traces: %s; nothing more is traced", error)
            if self._failed:
                self.dropped["failed"] += len(lines)
            else:
                self.written[kind] += len(lines)
            lines.clear()

    def close(self) -> None:
        self.flush()
        for file in self._files.values():
            try:
                file.close()
            except OSError as error:
                logger.warning("traces: %s", error)

    def _add(self, kind: str, line: bytes, fits: bool) -> None:
        if not fits:
            self.dropped["max_bytes"] += 1
            return
        self.bytes += len(line)
        self._pending[kind].append(line)
