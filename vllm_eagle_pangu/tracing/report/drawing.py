# SPDX-License-Identifier: Apache-2.0
"""matplotlib as the report uses it: one look, saved as PNG and as SVG for the page."""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vllm_eagle_pangu.config import refusal

INK = "#1f2933"
GREEN, BLUE, AMBER, GREY = "#1a9a76", "#3b82c4", "#c98a1b", "#8a96a3"
WIDTH, HEIGHT = 5.8, 3.3
PNG_DPI = 160

STYLE: dict[Any, Any] = {
    "font.size": 9.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": GREY,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": GREY,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    # Names of requests and methods may hold dollar signs.
    "text.parse_math": False,
    "svg.fonttype": "none",
}


@contextmanager
def canvas(
    name: str, charts: dict[str, str], folder: Path, height: float = HEIGHT, **subplots: Any
) -> Iterator[tuple[Any, Any]]:
    """A figure in the report's look and its axes.

    What was drawn becomes NAME.png in `folder`, on white, and `charts[name]`, SVG in the page's
    own ink.

    Raises:
        ValueError: matplotlib is not installed.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise refusal(
            "report", "charts", "matplotlib is not installed", "pip install matplotlib"
        ) from error
    # Clip paths are named by a salted hash: the salt keeps the charts of a page apart.
    with rc_context(STYLE | {"svg.hashsalt": name}):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        yield figure, figure.subplots(**subplots)
        figure.savefig(folder / f"{name}.png", dpi=PNG_DPI, facecolor="white")
        drawn = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(drawn, format="svg", transparent=True, metadata=nothing)
    svg = drawn.getvalue()
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor")
    charts[name] = re.sub(r'<g id="[^"]*">', "<g>", svg)
