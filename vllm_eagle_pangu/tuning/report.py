# SPDX-License-Identifier: Apache-2.0
"""The files a run leaves: the choice as JSON, the table that led there as CSV and Markdown."""

import json
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vllm_eagle_pangu.measure.files import markdown, write_csv, write_json
from vllm_eagle_pangu.measure.method import Method, of_shape
from vllm_eagle_pangu.tracing.provenance import provenance
from vllm_eagle_pangu.tuning.choice import ratio, verdict
from vllm_eagle_pangu.tuning.tune import Outcome

COLUMNS = (
    "batch_size",
    "method",
    "expected_tau",
    "draft_ms",
    "verify_ms",
    "expected_tokens_per_s",
    "tau",
    "tokens_per_s",
    "slowest_round",
    "fastest_round",
    "ratio_to_plain",
    "sweep_share_of_choice",
    "chosen",
)
# Of the expected but not measured, so many per batch size in Markdown; CSV has all.
SHOWN = 8

Row = dict[str, Any]


def write(outcome: Outcome) -> list[Path]:
    """Write `--out` and its siblings; returns their paths."""
    path = Path(outcome.settings.out)
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = table(outcome)
    write_json(summary(outcome, rows), path)
    write_csv(rows, path.with_suffix(".csv"), COLUMNS)
    path.with_suffix(".md").write_text(page(outcome, rows), encoding="utf-8")
    return [path.with_suffix(suffix) for suffix in (".json", ".csv", ".md")]


def summary(outcome: Outcome, rows: list[Row]) -> dict[str, Any]:
    """What `--out` holds: first what to paste, last where it comes from."""
    choice, head = outcome.choice, outcome.settings.head
    return {
        "speculative_config": choice.overall.speculative_config(head),
        "method": choice.overall.title,
        "verdict": verdict(outcome.raced, choice),
        "by_batch_size": {
            str(batch): {
                "method": method.title,
                "speculative_config": method.speculative_config(head),
                "ratio_to_plain": round(ratio(outcome.raced[batch], method), 3),
            }
            for batch, method in choice.best.items()
        },
        "sweep": {
            str(batch): {
                "choice": choice.best[batch].title,
                "reached": round(swept.reached, 3),
                "run_again": {m.title: round(share, 3) for m, share in swept.again.items()},
            }
            for batch, swept in outcome.swept.items()
        },
        "measured": [row for row in rows if "tokens_per_s" in row],
        "costs_ms": {
            str(batch): {
                "verify_by_nodes": _rounded(cost.verify_ms),
                "draft_first_by_width": _rounded(cost.first_ms),
                "draft_level_by_width": _rounded(cost.level_ms),
                "draft_row": round(cost.row_ms, 4),
            }
            for batch, cost in outcome.costs.items()
        },
        "settings": asdict(outcome.settings),
        "prompts": outcome.prompts,
        "recorded_tokens": outcome.positions,
        "seconds": round(outcome.seconds, 1),
        "provenance": provenance(outcome.device),
    }


def table(outcome: Outcome) -> list[Row]:
    """A row for every method at every batch size that was expected or measured."""
    rows = []
    for batch, times in outcome.raced.items():
        cells: defaultdict[Method, Row] = defaultdict(dict)
        for p in outcome.predicted[batch]:
            cells[of_shape(p.shape)] |= {
                "expected_tau": round(p.tau, 3),
                "draft_ms": round(p.draft_ms, 3),
                "verify_ms": round(p.verify_ms, 3),
                "expected_tokens_per_s": round(p.tokens_per_s, 1),
            }
        for method, figures in times.items():
            low, high = figures.range_per_s
            cells[method] |= {
                "tau": None if figures.tau is None else round(figures.tau, 3),
                "tokens_per_s": round(figures.tokens_per_s, 1),
                "slowest_round": round(low, 1),
                "fastest_round": round(high, 1),
                "ratio_to_plain": round(ratio(times, method), 3),
            }
        if batch in outcome.swept:
            for method, share in outcome.swept[batch].relative.items():
                cells[method]["sweep_share_of_choice"] = round(share, 3)
        cells[outcome.choice.best[batch]]["chosen"] = "best"
        cells[outcome.choice.overall]["chosen"] = "overall"
        rows += [{"batch_size": batch, "method": m.title, **row} for m, row in cells.items()]
    return rows


def page(outcome: Outcome, rows: list[Row]) -> str:
    """The verdict, the configuration, and the rows that mattered."""
    config = outcome.choice.overall.speculative_config(outcome.settings.head)
    said = "\n".join(f"- {line}" for line in verdict(outcome.raced, outcome.choice))
    parts = [f"# Tuned: {Path(outcome.settings.model).name}", said]
    if config is not None:
        parts.append(f"    --speculative-config '{json.dumps(config)}'")
    for batch in outcome.raced:
        own = [row for row in rows if row["batch_size"] == batch]
        raced = sorted(
            (row for row in own if "tokens_per_s" in row), key=lambda row: -row["tokens_per_s"]
        )
        rest = [row for row in own if "tokens_per_s" not in row]
        parts += [f"## Batch {batch}", _lines(raced + rest[:SHOWN])]
    return "\n\n".join(parts) + "\n"


def _lines(rows: list[Row]) -> str:
    columns = [column for column in COLUMNS[1:] if any(column in row for row in rows)]
    texts = (["" if row.get(n) is None else str(row[n]) for n in columns] for row in rows)
    return markdown([column.replace("_", " ") for column in columns], texts)


def _rounded(times: dict[int, float]) -> dict[str, float]:
    return {str(key): round(ms, 4) for key, ms in times.items()}
