# SPDX-License-Identifier: Apache-2.0
"""The report's charts. Each is written as NAME.png and returned as SVG."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vllm_eagle_pangu.tracing.report.comparison import Method
from vllm_eagle_pangu.tracing.report.drawing import (
    AMBER,
    BLUE,
    GREEN,
    GREY,
    HEIGHT,
    INK,
    canvas,
    save,
)
from vllm_eagle_pangu.tracing.report.speed_chart import draw_speed
from vllm_eagle_pangu.tracing.report.statistics import WHOLE_STEP, Bin, Share, Statistics

# From here on a step's times read better in milliseconds.
MILLISECONDS_FROM = 2000.0


def draw_charts(statistics: Statistics, methods: Sequence[Method], folder: Path) -> dict[str, str]:
    """Every chart that the run has data for, as SVG by name; PNGs go into `folder`."""
    charts = {
        "tau-distribution": _tau_distribution(statistics, folder),
        "tau-by-request": _tau_by_request(statistics, folder),
    }
    if statistics.positions:
        charts["acceptance-by-position"] = _by_position(statistics, folder)
        charts["acceptance-by-rank"] = _by_rank(statistics.ranks, folder)
        charts["calibration"] = _calibration(statistics, folder)
    if statistics.stages:
        charts["stages"] = _stages(statistics, folder)
    if methods:
        charts["speedup-by-tau"] = draw_speed(methods, folder)
    return charts


def _tau_distribution(statistics: Statistics, folder: Path) -> str:
    with canvas() as (figure, axes):
        counts = range(min(statistics.emitted), max(statistics.emitted) + 1)
        total = statistics.request_steps
        shares = [100 * statistics.emitted.get(count, 0) / total for count in counts]
        axes.bar(counts, shares, 0.72, color=GREEN)
        for count, share in zip(counts, shares, strict=True):
            axes.annotate(
                f"{share:.0f}", (count, share), (0, 2), textcoords="offset points", ha="center"
            )
        top = axes.get_xaxis_transform()
        axes.plot([statistics.tau], [1], "v", color=INK, transform=top, clip_on=False)
        axes.annotate(
            f"τ = {statistics.tau:.2f}",
            (statistics.tau, 1),
            (8, -3),
            xycoords=top,
            textcoords="offset points",
        )
        axes.set_ylim(0, 1.15 * max(shares))
        axes.set_xticks(list(counts))
        axes.set_xlabel("tokens emitted in a step, bonus included")
        axes.set_ylabel("share of steps (%)")
        axes.grid(axis="x", visible=False)
        return save(figure, "tau-distribution", folder)


def _tau_by_request(statistics: Statistics, folder: Path) -> str:
    with canvas() as (figure, axes):
        taus = sorted(request.tau for request in statistics.requests)
        axes.plot(range(1, len(taus) + 1), taus, "o", color=GREEN, markersize=4, alpha=0.8)
        axes.axhline(statistics.tau, color=INK, linewidth=1.4, linestyle=(0, (4, 2)))
        axes.annotate(
            "all\nsteps",
            (1, statistics.tau),
            (4, 0),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            va="center",
        )
        axes.set_ylim(0, max(taus) * 1.1)
        axes.set_xlim(0.4, len(taus) + 0.6)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_xlabel("request, in order of τ")
        axes.set_ylabel("τ (tokens per step)")
        return save(figure, "tau-by-request", folder)


def _by_position(statistics: Statistics, folder: Path) -> str:
    with canvas() as (figure, axes):
        depths = [position.depth for position in statistics.positions]
        reached = [position.share for position in statistics.positions]
        conditional = [position.conditional for position in statistics.positions]
        axes.bar([d - 0.2 for d in depths], _percent(reached), 0.38, color=GREEN, label="all steps")
        axes.bar(
            [d + 0.2 for d in depths],
            _percent(conditional),
            0.38,
            color=BLUE,
            label="steps that reached the depth before",
        )
        axes.set_xticks(depths)
        axes.set_ylim(0, 100)
        axes.set_xlabel("depth d in the tree (1: the root's children)")
        axes.set_ylabel("accepted path reached d (%)")
        axes.grid(axis="x", visible=False)
        figure.legend(loc="outside upper left", ncols=2)
        return save(figure, "acceptance-by-position", folder)


def _by_rank(ranks: Sequence[Share], folder: Path) -> str:
    with canvas() as (figure, axes):
        places = range(1, len(ranks) + 1)
        axes.bar(places, _percent(ranks), 0.72, color=BLUE, yerr=_whiskers(ranks), ecolor=INK)
        for place, share in zip(places, ranks, strict=True):
            top = 100 * share.interval()[1]
            text = f"{100 * share.value:.1f}" if share.value < 0.1 else f"{100 * share.value:.0f}"
            axes.annotate(text, (place, top), (0, 2), textcoords="offset points", ha="center")
        axes.set_xticks(list(places))
        axes.set_ylim(0, 100)
        axes.set_xlabel("place among its siblings by the drafter's score (1: best)")
        axes.set_ylabel("accepted, once the parent was (%)")
        axes.grid(axis="x", visible=False)
        return save(figure, "acceptance-by-rank", folder)


def _calibration(statistics: Statistics, folder: Path) -> str:
    ratios = {"gridspec_kw": {"height_ratios": [3, 1]}, "sharex": True}
    with canvas(HEIGHT + 0.9, 2, **ratios) as (figure, (axes, counts)):
        axes.plot([0, 100], [0, 100], color=GREY, linewidth=1, linestyle=(0, (3, 3)))
        for bins, colour, label, shift in (
            (statistics.conditional, BLUE, "a node, once its parent was accepted", -1),
            (statistics.cumulative, GREEN, "a node with its whole path", 1),
        ):
            _calibration_line(axes, bins, colour, label)
            middles = [50 * (one.low + one.high) + 2 * shift for one in bins]
            counts.bar(middles, [one.accepted.total for one in bins], 3.6, color=colour)
        counts.set_yscale("log")
        counts.yaxis.set_major_formatter("{x:,.0f}")
        counts.set_ylim(bottom=0.7)
        counts.set_ylabel("nodes")
        counts.set_xlabel("the drafter's probability (%)")
        axes.set_xlim(0, 100)
        axes.set_ylim(0, 100)
        axes.set_ylabel("accepted by the target (%)")
        figure.legend(loc="outside upper left", ncols=2)
        return save(figure, "calibration", folder)


def _calibration_line(axes: Any, bins: Sequence[Bin], colour: str, label: str) -> None:
    axes.errorbar(
        [100 * one.mean_probability for one in bins],
        _percent([one.accepted for one in bins]),
        yerr=_whiskers([one.accepted for one in bins]),
        color=colour,
        marker="o",
        markersize=4,
        linewidth=1.4,
        elinewidth=0.9,
        label=label,
        clip_on=False,
    )


def _stages(statistics: Statistics, folder: Path) -> str:
    stages = statistics.stages[::-1]
    long = max(stage.p99 for stage in stages) >= MILLISECONDS_FROM
    scale, unit = (1000.0, "ms") if long else (1.0, "µs")
    with canvas(1.1 + 0.36 * len(stages)) as (figure, axes):
        places = range(len(stages))
        colours = [GREY if stage.name == WHOLE_STEP else BLUE for stage in stages]
        medians = axes.barh(places, [s.p50 / scale for s in stages], 0.62, color=colours)
        for stage, place in zip(stages, places, strict=True):
            axes.plot([stage.p50 / scale, stage.p99 / scale], [place, place], color=INK, lw=0.9)
        p90, p99 = ([getattr(s, name) / scale for s in stages] for name in ("p90", "p99"))
        (ticks,) = axes.plot(p90, places, "|", color=INK, markersize=10, markeredgewidth=1.6)
        (dots,) = axes.plot(p99, places, "o", color=AMBER, markersize=5)
        axes.set_yticks(places, [stage.name for stage in stages])
        axes.set_xlim(left=0)
        axes.set_xlabel(f"time per engine step ({unit})")
        axes.grid(axis="y", visible=False)
        figure.legend(
            [medians, ticks, dots], ["median", "p90", "p99"], loc="outside upper left", ncols=3
        )
        return save(figure, "stages", folder)


def _percent(shares: Sequence[Share]) -> list[float]:
    return [100 * share.value for share in shares]


def _whiskers(shares: Sequence[Share]) -> list[list[float]]:
    """95 % intervals as matplotlib wants them: below and above the value."""
    bounds = [share.interval() for share in shares]
    return [
        [100 * (share.value - low) for share, (low, _) in zip(shares, bounds, strict=True)],
        [100 * (high - share.value) for share, (_, high) in zip(shares, bounds, strict=True)],
    ]
