# SPDX-License-Identifier: Apache-2.0
"""E1 and E6: the same methods at batch 1, greedily and at each temperature."""

from vllm_eagle_pangu.bench.config import TemperatureConfig
from vllm_eagle_pangu.bench.experiments.base import (
    Experiment,
    Result,
    Row,
    fastest,
    pays_until,
    ratio_text,
    spread_verdict,
)
from vllm_eagle_pangu.bench.groups import Group
from vllm_eagle_pangu.bench.records import Record
from vllm_eagle_pangu.measure.method import PLAIN, Method


class Throughput(Experiment):
    key = "E1"
    title = "Throughput at batch 1"

    def groups(self) -> list[Group]:
        return [Group(self.key, "batch-1", self.bench.methods(), self.prompts)]

    def rows(self, records: list[Record]) -> list[Row]:
        return [
            {"kind": method.kind, "nodes": method.nodes, **row}
            for method in self.bench.methods()
            if (row := self.bench.row(records, self.bench.part(method, self.key), method))
        ]

    def fill(self, result: Result, records: list[Record]) -> None:
        result.rows = self.rows(records)
        best = {
            kind: fastest(row for row in result.rows if row["kind"] == kind)
            for kind in ("chain", "scheduled chain", "own chain", "tree", "adaptive")
        }
        for kind, row in best.items():
            if row is not None:
                result.conclusions.append(
                    f"The fastest {kind} is {row['method']}: {ratio_text(row)}, "
                    f"{row['tokens_per_s']:.0f} tokens/s, tau {row['tau'] or 1:.2f}."
                )
        line = fastest(row for row in (best["chain"], best["own chain"]) if row is not None)
        if line and best["tree"]:
            share = best["tree"]["speedup"] / line["speedup"]
            result.conclusions.append(
                f"The fastest tree is {share:.2f} of {line['method']}, the fastest chain of all; "
                f"{spread_verdict(best['tree'], line)}."
            )
        slower = [r["method"] for r in result.rows if (r.get("speedup") or 1) < 1]
        if slower:
            result.conclusions.append(f"Slower than plain decoding: {', '.join(slower)}.")


class Temperature(Experiment):
    key = "E6"
    title = "Sampling temperature"
    config: TemperatureConfig

    def groups(self) -> list[Group]:
        """Greedy is E1, if that has the prompts."""
        there = {prompt for part in self.bench.parts.get("E1", ()) for prompt in part.prompts}
        return [
            Group(self.key, f"temperature-{value}", self._methods(), self.prompts, value)
            for value in self.config.temperatures
            if value > 0 or not there.issuperset(self.prompts)
        ]

    def _methods(self) -> tuple[Method, ...]:
        chains = self.config.vllm_chains
        return tuple(m for m in self.bench.methods() if chains or not m.is_vllms)

    def fill(self, result: Result, records: list[Record]) -> None:
        for method in self._methods():
            swept = []
            for value in sorted(self.config.temperatures):
                part = self.bench.part(method, self.key, Throughput.key, temperature=value)
                row = self.bench.row(records, part, method, self.prompts)
                if row is not None:
                    row.pop("same_as_plain", None)  # other draws, the same distribution
                    swept.append({"temperature": value, "kind": method.kind, **row})
            result.rows += swept
            idle = [str(row["temperature"]) for row in swept if row["tau"] == 1]
            if idle:
                result.conclusions.append(
                    f"{method.name} had not one drafted token accepted at temperature "
                    f"{', '.join(idle)}."
                )
            elif method != PLAIN:
                result.conclusions += pays_until(method.name, swept, "temperature")
        for value in sorted(self.config.temperatures):
            rows = [r for r in result.rows if r["temperature"] == value and r["kind"] != "plain"]
            best = fastest(rows)
            if best is not None:
                result.conclusions.append(
                    f"Temperature {value}: fastest is {best['method']}, {ratio_text(best)}, "
                    f"tau {best['tau']:.2f}."
                )
