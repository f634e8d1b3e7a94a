# SPDX-License-Identifier: Apache-2.0
"""The page as a whole: template, style, scripts and the header."""

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from string import Template
from typing import Any

from vllm_eagle_pangu.tracing.report import sections
from vllm_eagle_pangu.tracing.report.comparison import Method
from vllm_eagle_pangu.tracing.report.markup import definitions, escape
from vllm_eagle_pangu.tracing.report.recording import Recording
from vllm_eagle_pangu.tracing.report.statistics import Statistics

SCRIPTS = ("failures.js", "tree.js", "choice.js")
# Shown in the line below the title; what else the manifest has unfolds.
SUMMARY = ("started_at", "ended_at", "seed")
GROUPS = ("configuration", "device", "versions", "environment")
EMPTY = (
    "This run holds no steps. Either no request came to its first tree, or tracing was off: "
    "check the run's configuration below and that steps.jsonl lies beside manifest.json."
)
INCOMPLETE = (
    "Steps are missing from every figure below: the trace came to its size limit, or its writer "
    "fell behind. See lines_dropped under “Further”; trace_max_bytes raises the limit."
)


def render(
    recording: Recording,
    statistics: Statistics | None,
    charts: Mapping[str, str],
    methods: Sequence[Method],
    data: Mapping[str, Any],
) -> str:
    """The page's HTML; without `statistics` it says that the run is empty."""
    if statistics is None:
        figures = [f'<p class="notice">{escape(EMPTY)}</p>', _manifest(recording)]
    else:
        figures = [
            sections.headline(statistics),
            _manifest(recording),
            sections.emitted(statistics, charts),
            sections.acceptance(statistics, charts),
            sections.stages(statistics, charts),
            sections.speed(methods, charts),
            sections.trees(data),
        ]
    script = "\n".join(_resource(name) for name in SCRIPTS)
    digest = hashlib.sha256(script.encode()).digest()
    return Template(_resource("page.html")).substitute(
        title=escape(f"{recording.name}: eagle-pangu report"),
        style=_resource("page.css"),
        body="\n".join([_title(recording), *figures]),
        data=script_json(data),
        script=script,
        # With it the browser runs this script and no other, whatever a text might smuggle in.
        script_hash=base64.b64encode(digest).decode(),
    )


def script_json(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _title(recording: Recording) -> str:
    manifest = recording.manifest
    facts = [
        f"{key.removesuffix('_at')} {manifest[key]}"
        for key in SUMMARY
        if manifest.get(key) is not None
    ]
    notice = f'<p class="notice">{escape(INCOMPLETE)}</p>' if _incomplete(manifest) else ""
    return (
        f"<header><h1>{escape(recording.name)}</h1>"
        f'<p class="faint">{escape(" · ".join(facts))}</p>{notice}</header>'
    )


def _incomplete(manifest: Mapping[str, Any]) -> bool:
    dropped = manifest.get("lines_dropped")
    return manifest.get("truncated") is True or (
        isinstance(dropped, dict) and any(dropped.values())
    )


def _manifest(recording: Recording) -> str:
    manifest = recording.manifest
    groups = {name: manifest[name] for name in GROUPS if isinstance(manifest.get(name), dict)}
    rest = {key: value for key, value in manifest.items() if key not in groups}
    html = [definitions(name.capitalize(), list(_flat(group))) for name, group in groups.items()]
    html.append(definitions("Further", list(_flat(rest))))
    return f'<section class="run"><h2>The run</h2>{"".join(html)}</section>'


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested keys joined with dots."""
    for key, inner in value.items():
        name = f"{prefix}{key}"
        if isinstance(inner, dict) and inner:
            yield from _flat(inner, f"{name}.")
        else:
            yield name, inner if isinstance(inner, str) else json.dumps(inner, ensure_ascii=False)


def _resource(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")
