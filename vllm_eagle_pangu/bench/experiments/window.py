# SPDX-License-Identifier: Apache-2.0
"""E4: the drafter's context cut to a window, on long prompts; where the head looks at all."""

from __future__ import annotations

from vllm_eagle_pangu.bench.config import WindowConfig
from vllm_eagle_pangu.bench.experiments.base import Experiment, Result, Row, ratio_text
from vllm_eagle_pangu.bench.groups import Group
from vllm_eagle_pangu.bench.records import Record
from vllm_eagle_pangu.measure.method import PLAIN, tree


class Window(Experiment):
    key = "E4"
    title = "Drafter's context window"
    config: WindowConfig

    def groups(self) -> list[Group]:
        methods = (PLAIN, *(tree(self.config.tree, window) for window in self.config.windows))
        return [Group(self.key, "windows", methods, tuple(self.bench.longest))]

    def result(self, records: list[Record]) -> Result:
        result = self.new_result()
        for window in self.config.windows:
            method = tree(self.config.tree, window)
            row = self.bench.row(records, self.bench.part(self.key, method), method)
            if row is not None:
                result.rows.append({"window": "all" if window is None else window, **row})
        whole = next((row for row in result.rows if row["window"] == "all"), None)
        result.conclusions = [_conclusion(row, whole) for row in result.rows]
        if self.config.distances:
            self._add_distances(result)
        return result

    def _add_distances(self, result: Result) -> None:
        from vllm_eagle_pangu.bench.attention_distance import distance_rows, distances

        place = self.bench.place
        try:
            texts = [self.bench.conversations.ids(prompt) for prompt in self.bench.longest]
            found = distances(place.target, place.head, texts)
        # A head or a target that torch alone does not know takes only the histogram away.
        except (ValueError, KeyError, OSError) as error:
            result.errors.append(f"no attention distances: {error}")
            return
        result.more["distances"] = distance_rows(found)
        result.notes.append(
            "Distances: teacher-forced on the prompts, in torch; for each row and each head of the "
            "drafter, the row's position less that of the key with the most weight. Every (row, "
            "head) counts once, rows of little context too."
        )
        shares = [
            f"{100 * (found < window).float().mean().item():.0f} % within {window}"
            for window in self.config.windows
            if window is not None
        ]
        if shares:
            result.conclusions.append(f"The drafter's strongest key lies {', '.join(shares)}.")


def _conclusion(row: Row, whole: Row | None) -> str:
    text = f"Window {row['window']}: tau {row['tau'] or 1:.2f}, {ratio_text(row)}"
    if whole is None or whole is row:
        return f"{text}."
    share = row["tokens_per_s"] / whole["tokens_per_s"]
    return f"{text}; {share:.2f} of the speed with all of the context."
