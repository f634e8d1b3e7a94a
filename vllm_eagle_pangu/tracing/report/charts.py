# SPDX-License-Identifier: Apache-2.0
"""The report's charts. Each is written as NAME.png and returned as SVG."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vllm_eagle_pangu.tracing.report.comparison import Method
from vllm_eagle_pangu.tracing.report.drawing import AMBER, BLUE, GREEN, GREY, HEIGHT, INK, canvas
from vllm_eagle_pangu.tracing.report.statistics import (
    WHOLE_STEP,
    Position,
    Share,
    Stage,
    Statistics,
)

# From here on a step's times read better in milliseconds.
MILLISECONDS_FROM = 2000.0
# Of a step, in steps of plain decoding.
COST_LINES = (1, 1.5, 2, 2.5, 3, 4, 6)
LONGEST_NAME = 24
# How far a label's middle is from its point, as a share of the axes.
LABEL_REACH = 0.03
SIDES = np.array([(1, 1), (-1, 1), (1, -1), (-1, -1)])


def draw_charts(statistics: Statistics, methods: Sequence[Method], folder: Path) -> dict[str, str]:
    """Every chart that the run has data for, as SVG by name; PNGs go into `folder`."""
    charts: dict[str, str] = {}
    with canvas("tau-distribution", charts, folder) as (_, axes):
        _tau_distribution(statistics, axes)
    with canvas("tau-by-request", charts, folder) as (_, axes):
        _tau_by_request(statistics, axes)
    if statistics.positions:
        with canvas("acceptance-by-position", charts, folder) as (figure, axes):
            _by_position(statistics.positions, figure, axes)
        with canvas("acceptance-by-rank", charts, folder) as (_, axes):
            _by_rank(statistics.ranks, axes)
        panels = {"gridspec_kw": {"height_ratios": [3, 1]}, "sharex": True, "nrows": 2}
        with canvas("calibration", charts, folder, HEIGHT + 0.9, **panels) as (figure, both):
            _calibration(statistics, figure, *both)
    if statistics.stages:
        height = 1.1 + 0.36 * len(statistics.stages)
        with canvas("stages", charts, folder, height) as (figure, axes):
            _stages(statistics.stages[::-1], figure, axes)
    if methods:
        height = max(HEIGHT + 0.5, 1 + 0.2 * len(methods))
        with canvas("speedup-by-tau", charts, folder, height) as (figure, axes):
            _speed(methods, figure, axes)
    return charts


def _tau_distribution(statistics: Statistics, axes: Any) -> None:
    counts = range(min(statistics.emitted), max(statistics.emitted) + 1)
    total = statistics.steps
    shares = [100 * statistics.emitted.get(count, 0) / total for count in counts]
    axes.bar_label(axes.bar(counts, shares, 0.72, color=GREEN), fmt="%.0f", padding=2)
    top = axes.get_xaxis_transform()
    axes.plot([statistics.tau], [1], "v", color=INK, transform=top, clip_on=False)
    _note(axes, f"τ = {statistics.tau:.2f}", (statistics.tau, 1), (8, -3), xycoords=top)
    axes.set(xlabel="tokens emitted in a step, bonus included", ylabel="share of steps (%)")
    _bars_over(axes, counts, 1.15 * max(shares))


def _tau_by_request(statistics: Statistics, axes: Any) -> None:
    taus = sorted(request.tau for request in statistics.requests)
    axes.plot(range(1, len(taus) + 1), taus, "o", color=GREEN, markersize=4, alpha=0.8)
    axes.axhline(statistics.tau, color=INK, linewidth=1.4, linestyle=(0, (4, 2)))
    right = axes.get_yaxis_transform()
    _note(axes, "all\nsteps", (1, statistics.tau), (4, 0), xycoords=right, va="center")
    axes.set(xlim=(0.4, len(taus) + 0.6), ylim=(0, max(taus) * 1.1))
    axes.set(xlabel="request, in order of τ", ylabel="τ (tokens per step)")
    axes.xaxis.get_major_locator().set_params(integer=True)


def _by_position(positions: Sequence[Position], figure: Any, axes: Any) -> None:
    depths = np.array([position.depth for position in positions])
    for shift, colour, label, shares in (
        (-0.2, GREEN, "all steps", [at.share for at in positions]),
        (0.2, BLUE, "steps that reached the depth before", [at.conditional for at in positions]),
    ):
        axes.bar(depths + shift, _percent(shares), 0.38, color=colour, label=label)
    axes.set_xlabel("depth d in the tree (1: the root's children)")
    axes.set_ylabel("accepted path reached d (%)")
    _bars_over(axes, depths, 100)
    figure.legend(loc="outside upper left", ncols=2)


def _by_rank(ranks: Sequence[Share], axes: Any) -> None:
    places = range(1, len(ranks) + 1)
    shares = _percent(ranks)
    bars = axes.bar(places, shares, 0.72, color=BLUE, yerr=_whiskers(ranks), ecolor=INK)
    labels = [f"{share:.1f}" if share < 10 else f"{share:.0f}" for share in shares]
    axes.bar_label(bars, labels, padding=2)
    axes.set_xlabel("place among its siblings by the drafter's score (1: best)")
    axes.set_ylabel("accepted, once the parent was (%)")
    _bars_over(axes, places, 100)


def _calibration(statistics: Statistics, figure: Any, axes: Any, counts: Any) -> None:
    axes.plot([0, 100], [0, 100], color=GREY, linewidth=1, linestyle=(0, (3, 3)))
    for bins, colour, label, shift in (
        (statistics.conditional, BLUE, "a node, once its parent was accepted", -1),
        (statistics.cumulative, GREEN, "a node with its whole path", 1),
        (statistics.believed, AMBER, "the same, as adaptive trees believe", 3),
    ):
        if not bins:
            continue
        accepted = [one.accepted for one in bins]
        axes.errorbar(
            [100 * one.mean_probability for one in bins],
            _percent(accepted),
            yerr=_whiskers(accepted),
            color=colour,
            marker="o",
            markersize=4,
            linewidth=1.4,
            elinewidth=0.9,
            label=label,
            clip_on=False,
        )
        middles = [50 * (one.low + one.high) + 2 * shift for one in bins]
        counts.bar(middles, [share.total for share in accepted], 3.6, color=colour)
    counts.set(yscale="log", ylabel="nodes", xlabel="probability (%)")
    counts.set_ylim(bottom=0.7)
    counts.yaxis.set_major_formatter("{x:,.0f}")
    axes.set(xlim=(0, 100), ylim=(0, 100), ylabel="accepted by the target (%)")
    figure.legend(loc="outside upper left", ncols=2)


def _stages(stages: Sequence[Stage], figure: Any, axes: Any) -> None:
    long = max(stage.p99 for stage in stages) >= MILLISECONDS_FROM
    scale, unit = (1000.0, "ms") if long else (1.0, "µs")
    places = range(len(stages))
    p50, p90, p99 = (
        [getattr(stage, name) / scale for stage in stages] for name in ("p50", "p90", "p99")
    )
    colours = [GREY if stage.name == WHOLE_STEP else BLUE for stage in stages]
    names = [stage.name for stage in stages]
    medians = axes.barh(places, p50, 0.62, color=colours, tick_label=names)
    axes.hlines(places, p50, p99, color=INK, lw=0.9)
    (ticks,) = axes.plot(p90, places, "|", color=INK, markersize=10, markeredgewidth=1.6)
    (dots,) = axes.plot(p99, places, "o", color=AMBER, markersize=5)
    axes.set_xlim(left=0)
    axes.set_xlabel(f"time per engine step ({unit})")
    axes.grid(axis="y", visible=False)
    figure.legend(
        [medians, ticks, dots], ["median", "p90", "p99"], loc="outside upper left", ncols=3
    )


def _speed(methods: Sequence[Method], figure: Any, axes: Any) -> None:
    """Methods by τ and speed, numbered as in the page's table."""
    taus, speeds = [m.tau for m in methods], [m.speedup for m in methods]
    left, right = 0.8 * min(1, *taus), 1.08 * max(taus)
    bottom, top = 0.9 * min(1, *speeds), 1.08 * max(1, *speeds)
    grey = {"fontsize": 7.5, "color": GREY, "annotation_clip": True}
    # Where methods lie whose step costs so many plain ones.
    for cost in COST_LINES:
        x = min(right, cost * top)
        axes.plot([0, x], [0, x / cost], color=GREY, linewidth=0.7, linestyle=(0, (2, 3)))
        _note(axes, f"{cost:g}×", (x, x / cost), (2, 3), **grey)
    axes.axhline(1, color=INK, linewidth=1, linestyle=(0, (4, 2)))
    axes.plot(taus, speeds, "o", color=GREEN, markersize=5)
    points = [
        ((m.tau - left) / (right - left), (m.speedup - bottom) / (top - bottom)) for m in methods
    ]
    middle = {"ha": "center", "va": "center", "fontsize": 8}
    for number, (m, (x, y)) in enumerate(zip(methods, _free_sides(points), strict=True), start=1):
        _note(axes, str(number), (m.tau, m.speedup), (7 * x, 7 * y), **middle)
    axes.set(xlim=(left, right), ylim=(bottom, top))
    axes.set_xlabel("τ (tokens per target forward)")
    axes.set_ylabel("speed (multiple of plain decoding)")
    names = [f"{n}  {m.name[:LONGEST_NAME]}" for n, m in enumerate(methods, start=1)]
    nothing = [axes.plot([], [], linestyle="none")[0] for _ in methods]
    figure.legend(nothing, names, loc="outside right upper", handlelength=0, handletextpad=0)


def _note(
    axes: Any, text: str, at: tuple[float, float], shift: tuple[float, float], **style: Any
) -> None:
    """A text beside a place, shifted from it by points."""
    axes.annotate(text, at, shift, textcoords="offset points", **style)


def _free_sides(points: Sequence[tuple[float, float]]) -> np.ndarray:
    """For each point of the unit square the diagonal on which other points are farthest."""
    at = np.array(points)
    labels = at[:, None] + LABEL_REACH * SIDES
    room = np.linalg.norm(labels[:, :, None] - at, axis=-1)
    own = np.eye(len(at), dtype=bool)[:, None]
    return SIDES[np.where(own, np.inf, room).min(-1).argmax(-1)]


def _bars_over(axes: Any, ticks: Iterable[int], top: float) -> None:
    """Bars stand on these places, up to `top` at most."""
    axes.set(xticks=list(ticks), ylim=(0, top))
    axes.grid(axis="x", visible=False)


def _percent(shares: Sequence[Share]) -> list[float]:
    return [100 * share.value for share in shares]


def _whiskers(shares: Sequence[Share]) -> np.ndarray:
    """`[2, n]` 95 % intervals as matplotlib wants them: below and above the value."""
    bounds = np.array([share.interval() for share in shares]).reshape(-1, 2).T
    return 100 * np.abs(bounds - [share.value for share in shares])
