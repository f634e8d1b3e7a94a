# SPDX-License-Identifier: Apache-2.0
"""Plain-text tables."""

from collections.abc import Sequence


def render(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
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
