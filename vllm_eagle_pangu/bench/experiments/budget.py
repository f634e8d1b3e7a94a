# SPDX-License-Identifier: Apache-2.0
"""E2: the tree's size, once over its nodes at one depth, once over its depth at one size."""

from __future__ import annotations

from vllm_eagle_pangu.bench.config import BudgetConfig
from vllm_eagle_pangu.bench.experiments.base import Experiment, Result, Row, fastest, ratio_text
from vllm_eagle_pangu.bench.groups import Group
from vllm_eagle_pangu.bench.records import Record
from vllm_eagle_pangu.measure.method import PLAIN, Method, tree


class Budget(Experiment):
    key = "E2"
    title = "Node budget and depth"
    config: BudgetConfig

    def sweeps(self) -> dict[str, list[Method]]:
        config = self.config
        return {
            "nodes": [tree((config.width, config.depth, nodes)) for nodes in config.nodes],
            "depths": [tree((config.width, d, config.depth_nodes)) for d in config.depths],
        }

    def groups(self) -> list[Group]:
        """A sweep is whole, also where E1 has its points: neighbours in time are compared."""
        prompts = self.bench.some(self.config.prompts)
        return [
            Group(self.key, name, (PLAIN, *methods), prompts)
            for name, methods in self.sweeps().items()
        ]

    def result(self, records: list[Record]) -> Result:
        result = self.new_result()
        for name in self.sweeps():
            parts = [part for part in self.bench.parts[self.key] if part.belongs_to(name)]
            swept = [row for part in parts for row in self._rows(records, name, part)]
            result.rows += swept
            result.conclusions += _conclusions(name, swept)
        return result

    def _rows(self, records: list[Record], sweep: str, part: Group) -> list[Row]:
        return [
            {"sweep": sweep, "depth": method.shape.depth, "nodes": method.nodes, **row}
            for method in part.methods
            if method.shape and (row := self.bench.row(records, part, method))
        ]


def _conclusions(name: str, rows: list[Row]) -> list[str]:
    best = fastest(rows)
    if best is None:
        return []
    what, column = {"nodes": ("M", "nodes"), "depths": ("D", "depth")}[name]
    longest = max(rows, key=lambda row: row["tau"] or 1)
    text = f"Over {what}: fastest at {what}={best[column]}, {ratio_text(best)}"
    if longest is best:
        return [f"{text}, which also accepts most (tau {longest['tau']:.2f})."]
    return [
        f"{text}; {what}={longest[column]} accepts most (tau {longest['tau']:.2f} against "
        f"{best['tau']:.2f}) and runs at {longest['speedup']:.2f}x."
    ]
