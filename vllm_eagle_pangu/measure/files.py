# SPDX-License-Identifier: Apache-2.0
"""What measurements are written as: JSON with its provenance, CSV, tables."""

import csv
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from vllm_eagle_pangu.measure.scrubbed import scrubbed, scrubbed_environment
from vllm_eagle_pangu.tracing.provenance import provenance


def facts() -> dict[str, Any]:
    """What a figure needs beside it to be believed: date, command, and where it is from.

    It names no folder of this machine: results are published.
    """
    import torch

    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": scrubbed(" ".join(sys.argv)),
        **provenance("cuda" if torch.cuda.is_available() else "cpu"),
        "environment": scrubbed_environment(),
    }


def write_json(content: object, path: Path) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def write_json_lines(rows: Iterable[Mapping[str, Any]], path: Path) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_csv(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """A column for every key of any row."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", encoding="utf-8", newline="") as file:
        lines = csv.DictWriter(file, names)
        lines.writeheader()
        lines.writerows(rows)


def markdown(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table: the first column to the left, the others to the right."""
    rule = ["---", *["--:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *lines))


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    form = "  ".join(f"{{:{'>' if place else '<'}{w}}}" for place, w in enumerate(widths))
    rule = ["-" * width for width in widths]
    return "\n".join(form.format(*cells).rstrip() for cells in (header, rule, *rows))
