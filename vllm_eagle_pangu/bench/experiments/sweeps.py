# SPDX-License-Identifier: Apache-2.0
"""E2 and E4: trees by their nodes and depth; one tree by the drafter's window, on long prompts."""

from operator import itemgetter

from vllm_eagle_pangu.bench.config import BudgetConfig, WindowConfig
from vllm_eagle_pangu.bench.experiments.base import Experiment, Result, Row, fastest, ratio_text
from vllm_eagle_pangu.bench.groups import Group
from vllm_eagle_pangu.bench.records import Record
from vllm_eagle_pangu.bench.statistics import grouped
from vllm_eagle_pangu.measure.method import PLAIN, tree


class Budget(Experiment):
    key = "E2"
    title = "Node budget and depth"
    config: BudgetConfig

    def groups(self) -> list[Group]:
        """A sweep is whole, also where E1 has its points: neighbours in time are compared."""
        return [
            Group(self.key, name, (PLAIN, *map(tree, shapes)), self.prompts)
            for name, shapes in self.config.sweeps().items()
        ]

    def fill(self, result: Result, records: list[Record]) -> None:
        for part in self.bench.parts[self.key]:
            sweep = part.name.partition("-")[0]
            result.rows += [
                {"sweep": sweep, "depth": method.shape.depth, "nodes": method.nodes, **row}
                for method in part.methods
                if method.shape and (row := self.bench.row(records, part, method))
            ]
        for sweep, rows in grouped(result.rows, itemgetter("sweep")).items():
            best = fastest(rows)
            if best is not None:
                result.conclusions.append(_best_text(sweep, best, rows))


def _best_text(sweep: str, best: Row, rows: list[Row]) -> str:
    what, column = {"nodes": ("M", "nodes"), "depths": ("D", "depth")}[sweep]
    longest = max(rows, key=lambda row: row["tau"] or 1)
    text = f"Over {what}: fastest at {what}={best[column]}, {ratio_text(best)}"
    if longest is best:
        return f"{text}, which also accepts most (tau {longest['tau']:.2f})."
    return (
        f"{text}; {what}={longest[column]} accepts most (tau {longest['tau']:.2f} against "
        f"{best['tau']:.2f}) and runs at {longest['speedup']:.2f}x."
    )


class Window(Experiment):
    key = "E4"
    title = "Drafter's context window"
    config: WindowConfig

    def groups(self) -> list[Group]:
        methods = (PLAIN, *(tree(self.config.tree, window) for window in self.config.windows))
        return [Group(self.key, "windows", methods, tuple(self.bench.longest))]

    def fill(self, result: Result, records: list[Record]) -> None:
        for window in self.config.windows:
            method = tree(self.config.tree, window)
            row = self.bench.row(records, self.bench.part(method, self.key), method)
            if row is not None:
                result.rows.append({"window": "all" if window is None else window, **row})
        whole = next((row for row in result.rows if row["window"] == "all"), None)
        result.conclusions = [_window_text(row, whole) for row in result.rows]
        if self.config.distances:
            self._add_distances(result)

    def _add_distances(self, result: Result) -> None:
        """Where the head looks at all."""
        from vllm_eagle_pangu.bench.attention_distance import distance_rows, distances

        try:
            texts = [self.bench.conversations.ids(prompt.turns) for prompt in self.bench.longest]
            found = distances(self.bench.target, self.bench.head, texts)
        # A head or a target that torch alone does not know takes only the histogram away.
        except (ValueError, RuntimeError, KeyError, OSError) as error:
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


def _window_text(row: Row, whole: Row | None) -> str:
    text = f"Window {row['window']}: tau {row['tau'] or 1:.2f}, {ratio_text(row)}"
    if whole is None or whole is row:
        return f"{text}."
    share = row["tokens_per_s"] / whole["tokens_per_s"]
    return f"{text}; {share:.2f} of the speed with all of the context."
