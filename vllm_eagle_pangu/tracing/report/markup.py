# SPDX-License-Identifier: Apache-2.0
"""Pieces of HTML. Texts given here are escaped here, except those named `html`."""

import math
from collections.abc import Iterable, Sequence
from html import escape

__all__ = ["chart", "definitions", "escape", "microseconds", "pair", "percent", "section", "table"]

# Characters; the page cuts at the end of the line.
PREVIEW = 240


def section(title: str, text: str, *html: str, anchor: str = "") -> str:
    return "\n".join(
        [
            f'<section id="{escape(anchor)}">' if anchor else "<section>",
            f"<h2>{escape(title)}</h2>",
            f"<p>{escape(text)}</p>" if text else "",
            *html,
            "</section>",
        ]
    )


def chart(title: str, note: str, html: str) -> str:
    return f"<figure><h3>{escape(title)}</h3><figcaption>{escape(note)}</figcaption>{html}</figure>"


def pair(*html: str) -> str:
    """Side by side where there is room."""
    return f'<div class="pair">{"".join(html)}</div>'


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The first column reads from the left; long tables scroll."""
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>\n" for row in rows
    )
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>\n{body}</tbody></table></div>"
    )


def definitions(title: str, values: Sequence[tuple[str, str]]) -> str:
    """Names and values that unfold; folded, their beginning is seen."""
    preview = " · ".join(f"{name} {value}" for name, value in values)[:PREVIEW]
    rows = "".join(
        f'<tr><td>{escape(name)}</td><td class="mono">{escape(value)}</td></tr>\n'
        for name, value in values
    )
    return (
        f"<details><summary>{escape(title)}<span>{escape(preview)}</span></summary>"
        f"<table><tbody>\n{rows}</tbody></table></details>"
    )


def percent(share: float) -> str:
    return "–" if math.isnan(share) else f"{100 * share:.1f} %"


def microseconds(value: float) -> str:
    """Three digits, in the unit that reads best."""
    for unit in ("µs", "ms"):
        if value < 999.5:
            return f"{_three_digits(value)} {unit}"
        value /= 1000
    return f"{_three_digits(value)} s"


def _three_digits(value: float) -> str:
    if value >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"
