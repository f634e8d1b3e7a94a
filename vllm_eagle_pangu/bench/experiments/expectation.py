# SPDX-License-Identifier: Apache-2.0
"""E7: the speed-up that acceptance and forward times promise, and the one that was measured."""

from vllm_eagle_pangu.bench.experiments.base import Experiment, Result, Row
from vllm_eagle_pangu.bench.groups import Group
from vllm_eagle_pangu.bench.records import Record
from vllm_eagle_pangu.bench.statistics import Answers, answers_of, median, summary
from vllm_eagle_pangu.measure.method import PLAIN, Method
from vllm_eagle_pangu.measure.statistics import acceptance_rate, expected_tokens

UNSEEN = "its forward replays in a CUDA graph, which nobody can time; set engine.enforce_eager"


class Expectation(Experiment):
    key = "E7"
    title = "Expected and measured speed-up"

    def groups(self) -> list[Group]:
        methods = self.bench.methods()
        return [Group(self.key, "forwards", methods, self.prompts, forward_times=True)]

    def fill(self, result: Result, records: list[Record]) -> None:
        result.notes.append(
            "T(1 row) is the median whole step of plain decoding; T(rows) the median time of the "
            "target's forward and logits over all rows of a step, timed directly in the engine in "
            "a run of its own. No step is shorter than its forward, so tokens x T(1) / T(rows) "
            "bounds the speed-up; tokens are tau for a tree, and for a chain what its alpha "
            "predicts. Measured: E1's speed-up where it ran, else this run's own."
        )
        for part in self.bench.parts[self.key]:
            plain = answers_of(records, part, PLAIN)
            for method in part.methods:
                mine = answers_of(records, part, method)
                if not all("forward_ms" in record for record in mine):
                    result.errors.append(f"{method.name}: {UNSEEN}")
                elif mine and plain and method != PLAIN:
                    result.rows.append(self._row(records, method, mine, plain))
        for row in result.rows:
            result.conclusions.append(
                f"{row['method']}: {row['tokens']:.2f} tokens per step over {row['rows']} rows "
                f"bound it at {row['bound']:.2f}x; measured {row['measured']:.2f}x, "
                f"{100 * row['fraction']:.0f} % of it."
            )

    def _row(self, records: list[Record], method: Method, mine: Answers, plain: Answers) -> Row:
        figures, base = summary(mine, plain), summary(plain, [])
        counts = ("accepted", "drafts", "full_drafts")
        sums = {name: sum(record[name] for record in mine) for name in counts}
        alpha = acceptance_rate(**sums) if method.kind in ("chain", "own chain") else None
        tokens = figures["tau"] if alpha is None else expected_tokens(alpha, method.nodes)
        forward = median(mine, "forward_ms")
        # The speed-up were a step nothing but its target forward.
        bound = tokens * base["step_ms"] / forward
        headline = self.bench.row(records, self.bench.part(method, "E1"), method)
        measured = (headline or figures)["speedup"]
        return {
            "method": method.name,
            "rows": method.nodes + 1,
            "alpha": alpha,
            "tokens": tokens,
            "tau": figures["tau"],
            "plain_step_ms": base["step_ms"],
            "plain_forward_ms": median(plain, "forward_ms"),
            "forward_ms": forward,
            # Of vLLM's own chains; E3 has those of trees.
            "sampler_ms": median(mine, "sampler_ms"),
            "draft_ms": median(mine, "draft_ms"),
            "bound": bound,
            "measured": measured,
            "fraction": measured / bound,
        }
