# SPDX-License-Identifier: Apache-2.0
"""E6: acceptance and speed by temperature."""

from __future__ import annotations

from vllm_eagle_pangu.bench.config import TemperatureConfig
from vllm_eagle_pangu.bench.experiments.base import (
    Experiment,
    Result,
    Row,
    fastest,
    pays_until,
    ratio_text,
)
from vllm_eagle_pangu.bench.groups import Group
from vllm_eagle_pangu.bench.records import Record
from vllm_eagle_pangu.measure.method import PLAIN, Method


class Temperature(Experiment):
    key = "E6"
    title = "Sampling temperature"
    config: TemperatureConfig

    def groups(self) -> list[Group]:
        """Greedy is E1, if that has the prompts."""
        prompts = self.bench.some(self.config.prompts)
        return [
            Group(self.key, f"temperature-{value}", self._methods(), prompts, value)
            for value in self.config.temperatures
            if value > 0 or not self._greedy_in_e1()
        ]

    def _methods(self) -> tuple[Method, ...]:
        chains = self.config.vllm_chains
        return tuple(m for m in self.bench.methods() if chains or not m.is_vllms)

    def _greedy_in_e1(self) -> bool:
        config = self.bench.config.throughput
        if "E1" not in self.bench.chosen or config is None:
            return False
        there = {prompt.id for prompt in self.bench.some(config.prompts)}
        return {prompt.id for prompt in self.bench.some(self.config.prompts)} <= there

    def _group(self, method: Method, temperature: float) -> Group | None:
        own = self.bench.part(self.key, method, temperature)
        return own or (self.bench.part("E1", method) if temperature == 0 else None)

    def result(self, records: list[Record]) -> Result:
        result = self.new_result()
        prompts = self.bench.some(self.config.prompts)
        for method in self._methods():
            swept = []
            for value in sorted(self.config.temperatures):
                row = self.bench.row(records, self._group(method, value), method, prompts)
                if row is not None:
                    row.pop("same_as_plain", None)  # other draws, the same distribution
                    swept.append({"temperature": value, "kind": method.kind, **row})
            result.rows += swept
            if method != PLAIN:
                result.conclusions += _conclusions(method.name, swept)
        for value in sorted(self.config.temperatures):
            rows = [r for r in result.rows if r["temperature"] == value and r["kind"] != "plain"]
            best = fastest(rows)
            if best is not None:
                result.conclusions.append(
                    f"Temperature {value}: fastest is {best['method']}, {ratio_text(best)}, "
                    f"tau {best['tau']:.2f}."
                )
        return result


def _conclusions(name: str, rows: list[Row]) -> list[str]:
    idle = [str(row["temperature"]) for row in rows if row["tau"] == 1]
    if idle:
        return [f"{name} had not one drafted token accepted at temperature {', '.join(idle)}."]
    return pays_until(name, rows, "temperature")
