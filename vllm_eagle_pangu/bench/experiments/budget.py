# SPDX-License-Identifier: Apache-2.0
"""E2: the tree's size, once over its nodes at one depth, once over its depth at one size."""

from __future__ import annotations

from vllm_eagle_pangu.bench.config import BudgetConfig
from vllm_eagle_pangu.bench.experiments.base import Experiment, Result, Row, fastest, ratio_text
from vllm_eagle_pangu.bench.groups import Group
from vllm_eagle_pangu.bench.methods import PLAIN, Method, tree
from vllm_eagle_pangu.bench.records import Record


class Budget(Experiment):
    key = "E2"
    title = "Node budget and depth"

    @property
    def config(self) -> BudgetConfig:
        config = self.bench.config.budget
        assert config is not None
        return config

    def sweeps(self) -> dict[str, list[Method]]:
        config = self.config
        return {
            "nodes": [tree((config.width, config.depth, nodes)) for nodes in config.nodes],
            "depths": [tree((config.width, d, config.depth_nodes)) for d in config.depths],
        }

    def groups(self) -> list[Group]:
        """Shapes that E1, or the sweep before, measures on the same prompts are not run again."""
        prompts = self.bench.some(self.config.prompts)
        measured = self._measured_by_e1({prompt.id for prompt in prompts})
        groups = []
        for name, methods in self.sweeps().items():
            new = [method for method in methods if method not in measured]
            measured |= set(new)
            if new:
                groups.append(Group(self.key, name, (PLAIN, *new), prompts))
        return groups

    def _measured_by_e1(self, prompts: set[str]) -> set[Method]:
        config = self.bench.config.throughput
        if "E1" not in self.bench.chosen or config is None:
            return set()
        there = prompts <= {prompt.id for prompt in self.bench.some(config.prompts)}
        return set(self.bench.methods()) if there else set()

    def result(self, records: list[Record]) -> Result:
        result = self.new_result()
        prompts = self.bench.some(self.config.prompts)
        for name, methods in self.sweeps().items():
            swept = []
            for method in methods:
                group = self.bench.locate(method, [self.key, "E1"])
                row = self.bench.row(records, group, method, prompts)
                if row is not None:
                    depth = dict(method.keys)["tree_depth"]
                    swept.append({"sweep": name, "depth": depth, "nodes": method.nodes, **row})
            result.rows += swept
            result.conclusions += _conclusions(name, swept)
        return result


def _conclusions(name: str, rows: list[Row]) -> list[str]:
    best = fastest(rows)
    if best is None:
        return []
    what = {"nodes": "M", "depths": "D"}[name]
    column = {"nodes": "nodes", "depths": "depth"}[name]
    longest = max(rows, key=lambda row: row["tau"] or 1)
    text = f"Over {what}: fastest at {what}={best[column]}, {ratio_text(best)}"
    if longest is best:
        return [f"{text}, which also accepts most (tau {longest['tau']:.2f})."]
    return [
        f"{text}; {what}={longest[column]} accepts most (tau {longest['tau']:.2f} against "
        f"{best['tau']:.2f}) and runs at {longest['speedup']:.2f}x."
    ]
