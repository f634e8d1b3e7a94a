# SPDX-License-Identifier: Apache-2.0
"""What a run leaves: results.json, a CSV for each table, report.md, figures, compare.json."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vllm_eagle_pangu.bench.experiments.base import Result
from vllm_eagle_pangu.bench.experiments.throughput import compared
from vllm_eagle_pangu.bench.figures import draw_figures
from vllm_eagle_pangu.bench.records import Record, write_counts
from vllm_eagle_pangu.bench.report import report
from vllm_eagle_pangu.measure.files import write_csv, write_json, write_json_lines


@dataclass
class Outcome:
    """All that a run found. `missing`: prompts without a record, by the rank that died."""

    provenance: dict[str, Any]
    config: dict[str, Any]
    results: list[Result]
    missing: dict[int, list[str]]

    def failed(self) -> bool:
        return bool(self.missing) or any(result.errors for result in self.results)


def write_results(outcome: Outcome, records: list[Record], out: Path) -> None:
    """Write everything into `out`; `records` sorted."""
    write_json_lines(records, out / "records.jsonl")
    write_counts(records, out / "counts.csv")
    for result in outcome.results:
        write_csv(result.rows, out / f"{result.key}.csv")
        for name, rows in result.more.items():
            write_csv(rows, out / f"{result.key}-{name}.csv")
        if result.key == "E1" and result.rows:
            write_json(compared(result.rows), out / "compare.json")
    pictures = draw_figures(outcome.results, out)
    found = asdict(outcome)
    found["experiments"] = {result["key"]: result for result in found.pop("results")}
    write_json(found, out / "results.json")
    text = report(outcome.results, outcome.missing, outcome.provenance, pictures)
    (out / "report.md").write_text(text, encoding="utf-8")
