# SPDX-License-Identifier: Apache-2.0
"""What a run leaves: results.json, a CSV for each table, report.md, figures, compare.json."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vllm_eagle_pangu.bench.experiments.base import Result, Row, rated, speedup_text
from vllm_eagle_pangu.bench.figures import draw_figures
from vllm_eagle_pangu.bench.records import Record, write_counts
from vllm_eagle_pangu.measure.files import markdown, write_csv, write_json

# Left out of the Markdown tables, which stay narrow; the CSV files have every column.
HIDDEN = {"kind", "prompts", "repeats", "sampler_ms", "draft_ms"}
HIDDEN |= {"speedup_min", "speedup_max", "apart"}
HEADERS = {
    "tokens_per_s": "tokens/s",
    "speedup": "speed-up (min to max)",
    "prompt_mean": "prompts: mean",
    "prompt_p50": "p50",
    "prompt_p90": "p90",
    "prompt_p99": "p99",
    "same_as_plain": "same tokens as plain",
    "ttft_ms": "TTFT ms",
    "tpot_ms": "TPOT ms",
    "step_ms": "step ms",
}
BIG = 100


def write_results(
    provenance: Mapping[str, Any],
    config: Mapping[str, Any],
    results: list[Result],
    records: list[Record],
    out: Path,
) -> None:
    """Write everything into `out`; `records`: sorted."""
    write_counts(records, out / "counts.csv")
    for result in results:
        write_csv(result.rows, out / f"{result.key}.csv")
        for name, rows in result.more.items():
            write_csv(rows, out / f"{result.key}-{name}.csv")
        if result.key == "E1" and result.rows:
            # What `eagle-pangu report --compare` reads.
            methods = [
                {
                    "name": r["method"],
                    "tau": round(r["tau"] or 1, 4),
                    "speedup": round(r["speedup"], 4),
                }
                for r in rated(result.rows)
            ]
            write_json({"methods": methods}, out / "compare.json")
    pictures = draw_figures(results, out)
    experiments = {result.key: asdict(result) for result in results}
    found = {"provenance": provenance, "config": config, "experiments": experiments}
    write_json(found, out / "results.json")
    text = report(results, provenance, pictures)
    (out / "report.md").write_text(text, encoding="utf-8")


def report(
    results: list[Result],
    provenance: Mapping[str, Any],
    pictures: Mapping[str, list[str]],
) -> str:
    """report.md: tables, and sentences of their numbers; `pictures`: file names by experiment."""
    parts = ["# Benchmark", _machine(provenance)]
    for result in results:
        parts.append(f"## {result.key} {result.title}")
        parts += [f"- {sentence}" for sentence in result.conclusions]
        parts += [f"**Failed:** {error}" for error in result.errors]
        for rows in (result.rows, *result.more.values()):
            if rows:
                parts.append(table(rows))
        parts += [f"![{result.title}]({name})" for name in pictures.get(result.key, [])]
        parts += result.notes
    return "\n\n".join(parts).replace("\n\n- ", "\n- ") + "\n"


def _machine(provenance: Mapping[str, Any]) -> str:
    device, versions = provenance["device"], provenance["versions"]
    git = provenance["git"]
    source = f"commit {git['commit'][:12]}{' with changes' if git['dirty'] else ''}" if git else ""
    packages = ", ".join(f"{name} {number}" for name, number in versions.items())
    where = f"{device['name']}, {device['cores']} cores, {device['torch_threads']} torch threads"
    return "; ".join(part for part in (provenance["date"], where, packages, source) if part) + "."


def table(rows: list[Row]) -> str:
    names = [name for name in dict.fromkeys(n for row in rows for n in row) if name not in HIDDEN]
    head = [HEADERS.get(name, name.replace("_", " ")) for name in names]
    return markdown(head, ([_cell(row, name) for name in names] for row in rows))


def _cell(row: Row, name: str) -> str:
    value = row.get(name)
    if value is None:
        return "-"
    if name == "speedup":
        return speedup_text(row)
    if name == "same_as_plain":
        return f"{value} of {row['prompts']}"
    if isinstance(value, float):
        return f"{value:.1f}" if abs(value) >= BIG else f"{value:.2f}"
    return str(value)
