# SPDX-License-Identifier: Apache-2.0
"""E1: throughput at batch 1."""

from __future__ import annotations

from vllm_eagle_pangu.bench.experiments.base import (
    Experiment,
    Result,
    Row,
    fastest,
    ratio_text,
    spread_verdict,
)
from vllm_eagle_pangu.bench.groups import Group
from vllm_eagle_pangu.bench.records import Record
from vllm_eagle_pangu.measure.method import PLAIN


class Throughput(Experiment):
    key = "E1"
    title = "Throughput at batch 1"

    def groups(self) -> list[Group]:
        prompts = self.bench.some(self.config.prompts)
        return [Group(self.key, "batch-1", self.bench.methods(), prompts)]

    def rows(self, records: list[Record]) -> list[Row]:
        return [
            {"kind": method.kind, "nodes": method.nodes, **row}
            for method in self.bench.methods()
            if (row := self.bench.row(records, self.bench.part(self.key, method), method))
        ]

    def result(self, records: list[Record]) -> Result:
        result = self.new_result()
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
        return result


def compared(rows: list[Row]) -> dict[str, list[Row]]:
    """What `eagle-pangu report --compare` reads."""
    methods = [{"name": PLAIN.name, "tau": 1.0, "speedup": 1.0}]
    methods += [
        {"name": r["method"], "tau": round(r["tau"] or 1, 4), "speedup": round(r["speedup"], 4)}
        for r in rows
        if r["kind"] != PLAIN.kind and r.get("speedup") is not None
    ]
    return {"methods": methods}
