# SPDX-License-Identifier: Apache-2.0
"""Reads back what `writer` wrote."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vllm_eagle_pangu.tracing.schema import MANIFEST, REQUESTS, STEPS, parse_record


def run_folders(path: str | Path) -> list[Path]:
    """The runs in `path`, oldest first: itself if it is a run, else the folders below it.

    Raises FileNotFoundError where there is none.
    """
    folder = Path(path)
    if (folder / MANIFEST).is_file():
        return [folder]
    runs = sorted(manifest.parent for manifest in folder.glob(f"*/{MANIFEST}"))
    if not runs:
        raise FileNotFoundError(
            f"{folder}: no {MANIFEST} in it or one level below; give a run's folder, or the "
            "trace_dir that the runs were written to"
        )
    return runs


def read_manifest(run: str | Path) -> dict[str, Any]:
    """The manifest of a run. Raises ValueError for another schema or no JSON."""
    path = Path(run) / MANIFEST
    return parse_record(path.read_text(encoding="utf-8"), path)


def read_run(run: str | Path) -> Iterator[dict[str, Any]]:
    """The records of a run folder: its steps, then its requests, each as it stands in its line.

    A last line that a killed process left unfinished is passed over. Raises ValueError for another
    schema, and for a line that is no record, naming file and line.
    """
    read_manifest(run)
    for name in (STEPS, REQUESTS):
        path = Path(run) / name
        if path.is_file():
            yield from read_lines(path)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The records of one file, as in `read_run`."""
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                record = parse_record(line, f"{path}:{number}")
            except ValueError:
                if line.endswith("\n"):
                    raise
            else:
                yield record
