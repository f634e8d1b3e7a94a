# SPDX-License-Identifier: Apache-2.0
"""Progress of a run: a line for the reader, a CSV row for the plot."""

from __future__ import annotations

import csv
import time
from pathlib import Path

from vllm_eagle_pangu.training.run_state import Position


class ProgressLog:
    """Prints and records averaged figures every `every` steps."""

    def __init__(self, path: Path, every: int, resumed_at: int) -> None:
        self._path, self._every = path, every
        self._sums: dict[str, float] = {}
        self._steps = 0
        self._mark: tuple[float, int] | None = None
        if resumed_at == 0:
            path.unlink(missing_ok=True)
        elif path.exists():
            self._drop_rows_after(resumed_at)

    def add(self, position: Position, progress: float, figures: dict[str, float]) -> None:
        """Take one step's figures; print when the interval is full.

        `figures` of one run always have the same keys.
        """
        now = time.monotonic()
        if self._mark is None:
            self._mark = (now, position.tokens)
        for key, value in figures.items():
            self._sums[key] = self._sums.get(key, 0.0) + value
        self._steps += 1
        if position.step % self._every == 0:
            self._report(position, progress, now)

    def _report(self, position: Position, progress: float, now: float) -> None:
        assert self._mark is not None
        started, tokens = self._mark
        rate = (position.tokens - tokens) / max(now - started, 1e-9)
        means = {key: value / self._steps for key, value in self._sums.items()}
        left = position.seconds * (1.0 - progress) / max(progress, 1e-9) / 60.0
        shown = " ".join(f"{key} {value:.4g}" for key, value in means.items())
        print(
            f"step {position.step} ({progress:.1%}) tokens {position.tokens / 1e6:.2f}M "
            f"{shown} tok/s {rate:.0f} ETA {left:.1f} min",
            flush=True,
        )
        row = {"step": position.step, "tokens": position.tokens, "seconds": position.seconds}
        self._append({**row, **means})
        self._sums, self._steps, self._mark = {}, 0, (now, position.tokens)

    def _append(self, row: dict[str, float]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        new = not self._path.exists()
        with open(self._path, "a", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            if new:
                writer.writerow(row)
            writer.writerow(
                [f"{value:.6g}" if isinstance(value, float) else value for value in row.values()]
            )

    def _drop_rows_after(self, step: int) -> None:
        lines = self._path.read_text().splitlines(keepends=True)
        kept = lines[:1] + [line for line in lines[1:] if int(line.split(",")[0]) <= step]
        self._path.write_text("".join(kept))
