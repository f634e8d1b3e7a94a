# SPDX-License-Identifier: Apache-2.0
"""The chart of speed against τ."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from vllm_eagle_pangu.tracing.report.comparison import Method
from vllm_eagle_pangu.tracing.report.drawing import GREEN, GREY, INK

# Steps of plain decoding.
COST_LINES = (1, 1.5, 2, 2.5, 3, 4, 6)
LONGEST_NAME = 24
# How far a label's middle is from its point, as a share of the axes.
LABEL_REACH = 0.03
SIDES = ((1, 1), (-1, 1), (1, -1), (-1, -1))


def draw_speed(methods: Sequence[Method], figure: Any, axes: Any) -> None:
    """Methods by τ and speed, numbered as in the page's table."""
    taus, speeds = [m.tau for m in methods], [m.speedup for m in methods]
    left, right = 0.8 * min(1, *taus), 1.08 * max(taus)
    bottom, top = 0.9 * min(1, *speeds), 1.08 * max(1, *speeds)
    for cost in COST_LINES:
        _cost_line(axes, cost, right, top)
    axes.axhline(1, color=INK, linewidth=1, linestyle=(0, (4, 2)))
    axes.plot(taus, speeds, "o", color=GREEN, markersize=5)
    points = [
        ((m.tau - left) / (right - left), (m.speedup - bottom) / (top - bottom)) for m in methods
    ]
    for number, (method, (x, y)) in enumerate(
        zip(methods, _free_sides(points), strict=True), start=1
    ):
        axes.annotate(
            str(number),
            (method.tau, method.speedup),
            (7 * x, 7 * y),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=8,
        )
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top)
    axes.set_xlabel("τ (tokens per target forward)")
    axes.set_ylabel("speed (multiple of plain decoding)")
    names = [f"{n}  {m.name[:LONGEST_NAME]}" for n, m in enumerate(methods, start=1)]
    nothing = [axes.plot([], [], linestyle="none")[0] for _ in methods]
    figure.legend(nothing, names, loc="outside right upper", handlelength=0, handletextpad=0)


def _cost_line(axes: Any, cost: float, right: float, top: float) -> None:
    """Where methods lie whose step costs `cost` plain ones."""
    x = min(right, cost * top)
    axes.plot([0, x], [0, x / cost], color=GREY, linewidth=0.7, linestyle=(0, (2, 3)))
    axes.annotate(
        f"{cost:g}×",
        (x, x / cost),
        (2, 3),
        textcoords="offset points",
        fontsize=7.5,
        color=GREY,
        annotation_clip=True,
    )


def _free_sides(points: Sequence[tuple[float, float]]) -> list[tuple[int, int]]:
    """For each point of the unit square the diagonal on which other points are farthest."""

    def room(index: int, side: tuple[int, int]) -> float:
        x, y = (at + LABEL_REACH * sign for at, sign in zip(points[index], side, strict=True))
        others = [point for place, point in enumerate(points) if place != index]
        return min((math.hypot(x - u, y - v) for u, v in others), default=0.0)

    return [max(SIDES, key=partial(room, index)) for index in range(len(points))]
