# SPDX-License-Identifier: Apache-2.0
"""E3: where a step's time goes, by the plugin's own traces. A run of its own: tracing costs."""

from collections.abc import Iterable
from typing import Any

from vllm_eagle_pangu.bench.experiments.base import Experiment, Result, Row
from vllm_eagle_pangu.bench.groups import Group
from vllm_eagle_pangu.bench.records import Record
from vllm_eagle_pangu.bench.statistics import answers_of
from vllm_eagle_pangu.measure.method import PLAIN, tree
from vllm_eagle_pangu.measure.statistics import percentile
from vllm_eagle_pangu.tracing.reader import read_run
from vllm_eagle_pangu.tracing.schema import MANIFEST

TOTAL = "whole step"
RUNNER = "in the runner"
REST = "outside the stages"
# Rows that are no stage.
SUMS = (TOTAL, RUNNER, REST)
# The traces' own sum of a step's stages, without what lies between steps.
STEP_SUM = "step"


class Stages(Experiment):
    key = "E3"
    title = "Stages of a step"

    def groups(self) -> list[Group]:
        methods = (PLAIN, *map(tree, self.config.trees))
        return [Group(self.key, "traced", methods, self.prompts, traced=True)]

    def fill(self, result: Result, records: list[Record]) -> None:
        result.notes.append(
            "Stages from the traces of requests alone in their step, warm-up left out; the whole "
            "step as the caller of the engine sees it, tracing included. Quantiles of the stages "
            "do not add up to those of the step."
        )
        for part in self.bench.parts[self.key]:
            for method in part.methods:
                answers = answers_of(records, part, method)
                steps = [step for record in answers for step in record["steps_ms"]]
                if not steps:
                    continue
                stages = stage_times(self._traces(method.name))
                rows = _rows(method.name, stages, steps)
                result.rows += rows
                if stages:
                    result.conclusions.append(_largest(rows))
                elif method != PLAIN:
                    result.errors.append(f"{method.name}: its traces hold no stage times")

    def _traces(self, method: str) -> Iterable[dict[str, Any]]:
        for manifest in sorted(self.bench.out.glob(f"traces/{method}/*/{MANIFEST}")):
            yield from read_run(manifest.parent)


def stage_times(lines: Iterable[dict[str, Any]]) -> dict[str, list[float]]:
    """Milliseconds by stage over the steps of a single measured request."""
    times: dict[str, list[float]] = {}
    for line in lines:
        alone = line["kind"] == "step" and line["batch_size"] == 1
        if alone and line["request"].startswith(Stages.key):
            for name, value in line["stage_us"].items():
                times.setdefault(name.removesuffix("_us"), []).append(value / 1e3)
    return times


def _rows(method: str, stages: dict[str, list[float]], steps: list[float]) -> list[Row]:
    whole = percentile(steps, 50)
    parts = {name: times for name, times in stages.items() if name != STEP_SUM}
    rows = [_row(method, name, times, whole) for name, times in parts.items()]
    if rows:
        inside = sum(row["p50_ms"] for row in rows)
        rest = _row(method, REST, [whole - inside], whole)
        rows.append(rest | {"steps": len(steps), "p90_ms": None, "p99_ms": None})
    if STEP_SUM in stages:
        rows.append(_row(method, RUNNER, stages[STEP_SUM], whole))
    return [*rows, _row(method, TOTAL, steps, whole)]


def _row(method: str, stage: str, times: list[float], whole: float) -> Row:
    quantiles = {f"p{share}_ms": percentile(times, share) for share in (50, 90, 99)}
    share = quantiles["p50_ms"] / whole
    return {"method": method, "stage": stage, "steps": len(times), **quantiles, "share": share}


def _largest(rows: list[Row]) -> str:
    """The three largest stages of a method, of which the last row is the whole step."""
    whole, parts = rows[-1], [row for row in rows if row["stage"] not in SUMS]
    parts.sort(key=lambda row: -row["p50_ms"])
    shares = ", ".join(f"{row['stage']} {100 * row['share']:.0f} %" for row in parts[:3])
    return f"{whole['method']}: of a step of {whole['p50_ms']:.2f} ms (median) {shares}."
