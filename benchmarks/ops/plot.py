# SPDX-License-Identifier: Apache-2.0
"""A figure of the op benchmark: time per op and size, an implementation a colour."""

from pathlib import Path
from typing import Any


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """One panel per op, medians as bars and p20 to p80 as whiskers, logarithmic."""
    import matplotlib

    matplotlib.use("svg" if path.suffix == ".svg" else "agg")
    from matplotlib import pyplot

    ops = list(dict.fromkeys(row["op"] for row in rows))
    implementations = list(dict.fromkeys(row["implementation"] for row in rows))
    colours = dict(zip(implementations, ("#9aa5b1", "#1f77b4", "#2ca02c"), strict=False))
    options = {"squeeze": False, "sharex": True, "layout": "constrained"}
    figure, panels = pyplot.subplots(len(ops), figsize=(9, 1.6 * len(ops) + 1), **options)
    for op, panel in zip(ops, panels[:, 0], strict=True):
        own = [row for row in rows if row["op"] == op]
        shapes = list(dict.fromkeys(row["shape"] for row in own))
        height = 0.8 / len(implementations)
        for row in own:
            place = shapes.index(row["shape"])
            place += height * (implementations.index(row["implementation"]) - 0.5)
            error = [[row["p50"] - row["p20"]], [row["p80"] - row["p50"]]]
            panel.barh(place, row["p50"], height, xerr=error, color=colours[row["implementation"]])
        panel.set_yticks(range(len(shapes)), shapes, fontsize=7)
        # One axis for all: on axes of their own, logarithmic bars cannot be compared.
        panel.set_xscale("log")
        panel.set_xlim(left=1)
        panel.set_title(op, fontsize=9, loc="left")
    panels[-1, 0].set_xlabel(f"microseconds, {rows[0]['device']}")
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=colours[name]) for name in implementations]
    figure.legend(handles, implementations, loc="outside upper right", fontsize=8)
    figure.savefig(path)
