# SPDX-License-Identifier: Apache-2.0
"""`steps.jsonl` and `requests.jsonl` of a run, bounded in size."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from vllm_eagle_pangu.tracing.schema import REQUESTS, STEPS

logger = logging.getLogger(__name__)

# What steps leave free for the lines of requests: some thousands of them.
MOST_RESERVE = 2**20


class BoundedLines:
    """Collects lines until `flush`; both files together never exceed `max_bytes`.

    Steps stop for good at the first that does not fit, some space before the end: the lines of
    requests go on there. `written` counts lines in the files by kind, `dropped` those given up, by
    reason: for a `queue_full`, which the writer counts, beyond `max_bytes`, or `failed`.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        reserve = min(MOST_RESERVE, max_bytes // 8)
        self._room = {"steps": max_bytes - reserve, "requests": max_bytes}
        self._bytes = 0
        self.truncated = False
        self.written = {"steps": 0, "requests": 0}
        self.dropped = {"queue_full": 0, "max_bytes": 0, "failed": 0}
        self._failed = False
        self._pending: dict[str, list[bytes]] = {"steps": [], "requests": []}
        self._files = {
            "steps": open(folder / STEPS, "ab"),  # noqa: SIM115
            "requests": open(folder / REQUESTS, "ab"),  # noqa: SIM115
        }

    def add(self, kind: str, record: Mapping[str, Any]) -> None:
        """A line of `steps` or of `requests`.

        By pydantic's encoder, for `json`'s takes twice as long. Only broken drafts' scores are not
        finite; JSON has no word for that, Python has.
        """
        line = to_json(record, inf_nan_mode="constants") + b"\n"
        over = self._bytes + len(line) > self._room[kind]
        if over or (kind == "steps" and self.truncated):
            self.truncated = True
            self.dropped["max_bytes"] += 1
            return
        self._bytes += len(line)
        self._pending[kind].append(line)

    def flush(self) -> None:
        """Write what was added; after an error, which is logged once, nothing more is written."""
        for kind, lines in self._pending.items():
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
