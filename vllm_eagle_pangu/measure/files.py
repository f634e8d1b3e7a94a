# SPDX-License-Identifier: Apache-2.0
"""What measurements are written as: JSON with its provenance, CSV, tables."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from vllm_eagle_pangu.tracing.provenance import provenance


def facts() -> dict[str, Any]:
    """What a figure needs beside it to be believed: date, command, and where it is from."""
    import torch

    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": " ".join(sys.argv),
        **provenance("cuda" if torch.cuda.is_available() else "cpu"),
    }


def write_json(content: object, path: Path) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def write_csv(
    rows: Sequence[Mapping[str, Any]], path: Path, columns: Sequence[str] | None = None
) -> None:
    """`columns`: None for one of every key of any row."""
    names = columns or list(dict.fromkeys(name for row in rows for name in row))
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
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]

    def text(cells: Sequence[str]) -> str:
        first, *others = (
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join([first, *others]).rstrip()

    rule = "  ".join("-" * width for width in widths)
    return "\n".join([text(header), rule, *(text(row) for row in rows)])
