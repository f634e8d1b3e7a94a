# SPDX-License-Identifier: Apache-2.0
"""The page: `page.html` with its data, style and scripts."""

import base64
import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from vllm_eagle_pangu.tracing.report.comparison import EXAMPLE, Method
from vllm_eagle_pangu.tracing.report.recording import Recording
from vllm_eagle_pangu.tracing.report.statistics import WHOLE_STEP, Statistics

FOLDER = Path(__file__).parent
SCRIPTS = ("failures.js", "tree.js", "choice.js")
GROUPS = ("configuration", "device", "versions", "environment")


def render(
    recording: Recording,
    statistics: Statistics | None,
    charts: Mapping[str, str],
    methods: Sequence[Method],
    data: Mapping[str, Any],
) -> str:
    """The page's HTML; without `statistics` it says that the run is empty."""
    script = "\n".join(_text(name) for name in SCRIPTS)
    page = _environment().get_template("page.html")
    return page.render(
        recording=recording,
        groups=_groups(recording.manifest),
        statistics=statistics,
        whole_step=WHOLE_STEP,
        charts=charts,
        methods=methods,
        example=EXAMPLE,
        data=data,
        style=_text("page.css"),
        script=script,
        # With it the browser runs this script and no other, whatever a text might smuggle in.
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def percent(share: float) -> str:
    return "–" if math.isnan(share) else f"{100 * share:.1f} %"


def microseconds(value: float) -> str:
    """Three digits, in the unit that reads best."""
    unit = "µs"
    for longer in ("ms", "s"):
        if value >= 999.5:
            value, unit = value / 1000, longer
    decimals = (value < 99.95) + (value < 9.995)
    return f"{value:,.{decimals}f} {unit}"


def _environment() -> Environment:
    """Every text is escaped but charts, style and script, which are our own."""
    found = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # Whole, in groups of three digits.
    found.filters["grouped"] = "{:,.0f}".format
    found.filters |= {"percent": percent, "microseconds": microseconds}
    found.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return found


def _groups(manifest: Mapping[str, Any]) -> dict[str, list[tuple[str, str]]]:
    """Names and values by heading."""
    groups = {name: manifest[name] for name in GROUPS if isinstance(manifest.get(name), dict)}
    groups["further"] = {key: value for key, value in manifest.items() if key not in groups}
    return {name.capitalize(): list(_flat(group)) for name, group in groups.items()}


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested keys joined with dots."""
    for key, inner in value.items():
        name = f"{prefix}{key}"
        if isinstance(inner, dict) and inner:
            yield from _flat(inner, f"{name}.")
        else:
            yield name, inner if isinstance(inner, str) else json.dumps(inner, ensure_ascii=False)


def _text(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")
