# SPDX-License-Identifier: Apache-2.0
"""Reads back what `writer` wrote."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vllm_eagle_pangu.config import refusal
from vllm_eagle_pangu.tracing.schema import MANIFEST, REQUESTS, STEPS, parse_record


def find_run(path: str | Path) -> Path:
    """The run in `path`: itself if it is one, else the only one in the folders below it.

    Raises FileNotFoundError where there is none, ValueError where there are several.
    """
    folder = Path(path)
    if (folder / MANIFEST).is_file():
        return folder
    runs = sorted(manifest.parent for manifest in folder.glob(f"*/{MANIFEST}"))
    if not runs:
        raise FileNotFoundError(
            f"{folder}: no {MANIFEST} in it or one level below; give a run's folder, or the "
            "trace_dir that the runs were written to"
        )
    if len(runs) > 1:
        names = ", ".join(run.name for run in runs[-3:])
        raise refusal(
            "run", str(path), f"{len(runs)} runs in it", f"pass one of them; the last are {names}"
        )
    return runs[0]


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
        yield from read_lines(Path(run) / name)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The records of one file, as in `read_run`; none where there is no file."""
    if not path.is_file():
        return
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                record = parse_record(line, f"{path}:{number}")
            except ValueError:
                if line.endswith("\n"):
                    raise
            else:
                yield record
