# SPDX-License-Identifier: Apache-2.0
"""The files a run leaves: the choice as JSON, the table that led there as CSV and Markdown."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vllm_eagle_pangu.measure.files import markdown, write_csv, write_json
from vllm_eagle_pangu.tracing.provenance import provenance
from vllm_eagle_pangu.tuning.choice import explained
from vllm_eagle_pangu.tuning.tune import Outcome, Row


def write(outcome: Outcome) -> list[Path]:
    """Write `--out` and its siblings; returns their paths."""
    path = Path(outcome.settings.out)
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = table(outcome)
    write_json(summary(outcome, rows), path)
    write_csv(rows, path.with_suffix(".csv"))
    path.with_suffix(".md").write_text(page(outcome, rows), encoding="utf-8")
    return [path.with_suffix(suffix) for suffix in (".json", ".csv", ".md")]


def summary(outcome: Outcome, rows: list[Row]) -> dict[str, Any]:
    """What `--out` holds: first what to paste, last where it comes from."""
    choice, head = outcome.choice, outcome.settings.head
    by_batch_size = {
        str(batch): {
            "method": method.name,
            "speculative_config": method.speculative_config(head),
            **_rounded({"ratio_to_plain": choice.ratios[batch][method]}),
        }
        for batch, method in choice.best.items()
    }
    for batch, account in outcome.accounts.items():
        by_batch_size[str(batch)]["adaptive"] = _rounded(asdict(account))
    return {
        "speculative_config": choice.overall.speculative_config(head),
        "method": choice.overall.name,
        "verdict": choice.verdict(),
        "by_batch_size": by_batch_size,
        "measured": rows,
        "settings": asdict(outcome.settings),
        "prompts": outcome.prompts,
        "seconds": round(outcome.seconds, 1),
        "provenance": provenance(outcome.device),
    }


def table(outcome: Outcome) -> list[Row]:
    """A row for every method at every batch size, the fastest first; all of the same keys."""
    rows, choice = [], outcome.choice
    for batch, measured in outcome.measured.items():
        for method in sorted(measured, key=lambda method: -measured[method]["ratio"]):
            row = _rounded(measured[method]) | {"method": method.name}
            best = "best" if method == choice.best[batch] else ""
            rows.append(row | {"chosen": "overall" if method == choice.overall else best})
    return rows


def page(outcome: Outcome, rows: list[Row]) -> str:
    """The verdict, the configuration, and a table for each batch size."""
    config = outcome.choice.overall.speculative_config(outcome.settings.head)
    said = "\n".join(f"- {line}" for line in outcome.choice.verdict())
    parts = [f"# Tuned: {Path(outcome.settings.model).name}", said]
    if config is not None:
        parts.append(f"    --speculative-config '{json.dumps(config)}'")
    columns = [name for name in rows[0] if name != "clients"]
    for batch in outcome.measured:
        own = (row for row in rows if row["clients"] == batch)
        lines = [["" if row[name] is None else str(row[name]) for name in columns] for row in own]
        head = [name.replace("_", " ") for name in columns]
        parts += [f"## Batch {batch}", markdown(head, lines)]
        if batch in outcome.accounts:
            parts.append(f"As adaptive trees see it, {explained(batch, outcome.accounts[batch])}.")
    return "\n\n".join(parts) + "\n"


def _rounded(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: float(f"{value:.4g}") if isinstance(value, float) else value
        for name, value in values.items()
    }
