# SPDX-License-Identifier: Apache-2.0
"""The figures, as SVG: text that can be committed. Without matplotlib there are none."""

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vllm_eagle_pangu.bench.experiments.base import Result, Row, rated
from vllm_eagle_pangu.bench.experiments.stages import SUMS
from vllm_eagle_pangu.measure.method import PLAIN

# Inches.
SIZE = (7.0, 3.6)
# By the first word of a method's name.
COLORS = {
    "plain": "#7b8794",
    "chain": "#2f6fb3",
    "scheduled": "#7fb2e5",
    "own": "#8a5fb5",
    "tree": "#0b7a5c",
    "adaptive": "#d98e04",
}


def draw_figures(results: list[Result], out: Path) -> dict[str, list[str]]:
    """Draw what the results hold; the names of the files by experiment."""
    if find_spec("matplotlib") is None:
        for result in results:
            result.notes.append("No figure: install vllm-eagle-pangu[bench] for matplotlib.")
        return {}
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    drawn = defaultdict(list)
    for result in results:
        for name, (chosen, draw) in _DRAWN.items():
            rows = chosen(result) if name.startswith(result.key) else []
            if rows:
                figure = Figure(figsize=SIZE, layout="constrained")
                axes = figure.subplots()
                draw(axes, rows)
                axes.spines[["top", "right"]].set_visible(False)
                # The same figures give the same file.
                with rc_context({"svg.hashsalt": "eagle-pangu"}):
                    figure.savefig(out / name, metadata={"Date": None})
                drawn[result.key].append(name)
    return drawn


def _rated(result: Result, **having: Any) -> list[Row]:
    """Rows with a speed-up, and with these values."""
    wanted = having.items()
    return [row for row in rated(result.rows) if wanted <= row.items()]


def _colors(rows: list[Row]) -> list[str]:
    return [COLORS[row["method"].partition("-")[0]] for row in rows]


def _errors(rows: list[Row]) -> list[list[float]]:
    below = [row["speedup"] - row["speedup_min"] for row in rows]
    return [below, [row["speedup_max"] - row["speedup"] for row in rows]]


def _bars(axes: Any, rows: list[Row], label: str) -> None:
    """Speed-ups with their spreads."""
    labels, middle = [str(row[label]) for row in rows], [row["speedup"] for row in rows]
    axes.bar(labels, middle, yerr=_errors(rows), color=_colors(rows), capsize=3)
    axes.tick_params(axis="x", labelrotation=20)
    _speedups(axes)


def _speedups(axes: Any) -> None:
    axes.axhline(1, color="black", linewidth=0.8, linestyle=":")
    axes.set_ylabel("speed-up over plain")


def _points(axes: Any, rows: list[Row], x: str, **style: Any) -> None:
    """Speed-ups with their spreads, against `x`."""
    places, middle = [row[x] for row in rows], [row["speedup"] for row in rows]
    axes.errorbar(places, middle, yerr=_errors(rows), marker="o", capsize=3, **style)


def _lines(axes: Any, rows: list[Row], x: str, label: str) -> None:
    """Speed-up against `x`, a line per method."""
    for method in dict.fromkeys(row["method"] for row in rows):
        _points(axes, [row for row in rows if row["method"] == method], x, label=method)
    axes.set_xlabel(label)
    _speedups(axes)
    axes.legend(frameon=False, fontsize=8)


def _concurrency(axes: Any, rows: list[Row]) -> None:
    axes.set_xscale("log", base=2)
    _lines(axes, rows, "concurrency", "concurrent requests")


def _sweep(axes: Any, rows: list[Row], column: str, label: str) -> None:
    _points(axes, rows, column, color=COLORS["tree"])
    axes.set_xlabel(label)
    axes.set_ylabel("speed-up over plain", color=COLORS["tree"])
    right = axes.twinx()
    taus = [row["tau"] for row in rows]
    right.plot([row[column] for row in rows], taus, color=COLORS["chain"], marker="s")
    right.set_ylabel("tau", color=COLORS["chain"])


def _stages(axes: Any, rows: list[Row]) -> None:
    from matplotlib import colormaps

    left = {row["method"]: 0.0 for row in rows}
    for place, stage in enumerate(dict.fromkeys(row["stage"] for row in rows)):
        mine = {row["method"]: row["p50_ms"] for row in rows if row["stage"] == stage}
        begin, color = [left[method] for method in mine], colormaps["tab20"](place)
        axes.barh(list(mine), list(mine.values()), 0.5, begin, label=stage, color=color)
        left |= {method: left[method] + mine[method] for method in mine}
    axes.set_xlabel("ms per step (medians)")
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))


def _distances(axes: Any, rows: list[Row]) -> None:
    labels = [str(r["from"]) if r["from"] == r["to"] else f"{r['from']}-{r['to']}" for r in rows]
    axes.bar(labels, [row["share"] for row in rows], color=COLORS["chain"])
    axes.set_xlabel("distance of the strongest key, tokens")
    axes.set_ylabel("share of (row, head)")
    axes.tick_params(axis="x", labelrotation=30)


def _expectation(axes: Any, rows: list[Row]) -> None:
    names, measured = [row["method"] for row in rows], [row["measured"] for row in rows]
    axes.bar(names, [row["bound"] for row in rows], color="#d5dde3", label="bound")
    axes.bar(names, measured, width=0.5, color=_colors(rows), label="measured")
    axes.set_ylabel("speed-up over plain")
    axes.tick_params(axis="x", labelrotation=20)
    axes.legend(frameon=False, fontsize=8)


# By file: its rows of a result, and how they are drawn where there are any.
_DRAWN: dict[str, tuple[Callable[[Result], list[Row]], Callable[[Any, list[Row]], None]]] = {
    "E1.svg": (_rated, partial(_bars, label="method")),
    "E2-nodes.svg": (
        partial(_rated, sweep="nodes"),
        partial(_sweep, column="nodes", label="nodes M"),
    ),
    "E2-depths.svg": (
        partial(_rated, sweep="depths"),
        partial(_sweep, column="depth", label="depth D"),
    ),
    "E3.svg": (lambda found: [row for row in found.rows if row["stage"] not in SUMS], _stages),
    "E4.svg": (_rated, partial(_bars, label="window")),
    "E4-distances.svg": (lambda found: found.more.get("distances", []), _distances),
    "E5.svg": (_rated, _concurrency),
    "E6.svg": (
        lambda found: [row for row in _rated(found) if row["kind"] != PLAIN.kind],
        partial(_lines, x="temperature", label="temperature"),
    ),
    "E7.svg": (lambda found: found.rows, _expectation),
}
