# SPDX-License-Identifier: Apache-2.0
"""The records that are the lines of `steps.jsonl` and `requests.jsonl`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from vllm_eagle_pangu.core.paths import AcceptedPaths
from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.core.tree import TreeBatch
from vllm_eagle_pangu.tracing.schema import SCHEMA


class StepEntry(NamedTuple):
    """What the engine hands over of a step of T trees: references, nothing computed.

    `time_us`: of the writer's `now_us`. `batch_size`: requests in the step, with and without a
    tree. `requests: [T]` ids; `prefix_len: [T]` committed tokens before each root; `shapes: [T]`,
    as drafted. `stage_us`: microseconds by stage, of the whole batch, each name ending in `_us`.
    `belief: [T]`: by what line nodes were chosen (`kernels.tree_prune.Belief`), None where all are
    kept.

    Everything is kept by reference until it is written: nothing handed over may be written to
    afterwards, and tensors are on the CPU.
    """

    time_us: int
    step: int
    batch_size: int
    requests: Sequence[str]
    prefix_len: Sequence[int]
    shapes: Sequence[TreeShape]
    tree: TreeBatch
    paths: AcceptedPaths
    stage_us: Mapping[str, float]
    belief: Sequence[Sequence[float] | None] | None = None


def step_records(entry: StepEntry, wants: Callable[[str], bool]) -> Iterator[dict[str, Any]]:
    """What is written of each tree whose request is wanted."""
    stage_us = {name: round(value, 1) for name, value in entry.stage_us.items()}
    trees, paths = entry.tree, entry.paths
    tokens, parents, scores = trees.tokens.tolist(), trees.parent.tolist(), trees.score.tolist()
    valid, lengths = trees.valid.tolist(), paths.length.tolist()
    path_rows, output = paths.rows.tolist(), paths.output.tolist()
    for tree, request in enumerate(entry.requests):
        if not wants(request):
            continue
        rows, emitted = sum(valid[tree]), lengths[tree] + 1
        belief = entry.belief and entry.belief[tree]
        yield {
            "schema": SCHEMA,
            "kind": "step",
            "step": entry.step,
            "request": request,
            "time_us": entry.time_us,
            "batch_size": entry.batch_size,
            "prefix_tokens": entry.prefix_len[tree],
            "shape": entry.shapes[tree],
            "tokens": tokens[tree][:rows],
            "parents": parents[tree][:rows],
            "scores": [round(score, 4) for score in scores[tree][:rows]],
            "accepted_rows": path_rows[tree][:emitted],
            "emitted": output[tree][:emitted],
            "belief": belief and [round(each, 4) for each in belief],
            "stage_us": stage_us,
        }


@dataclass
class RequestTotals:
    """Steps that verified a tree of a request, nodes verified in them, nodes accepted."""

    started_us: int
    steps: int = 0
    nodes: int = 0
    accepted: int = 0

    def add(self, step: Mapping[str, Any]) -> None:
        """Another of its steps, by its record."""
        self.steps += 1
        self.nodes += len(step["tokens"]) - 1
        self.accepted += len(step["emitted"]) - 1

    def record(
        self, request: str, prompt_tokens: int, output_tokens: int, ended_us: int
    ) -> dict[str, Any]:
        """What is written of the request."""
        return {
            "schema": SCHEMA,
            "kind": "request",
            "request": request,
            "prompt_tokens": prompt_tokens,
            "output_tokens": output_tokens,
            **vars(self),
            "tau": round(1 + self.accepted / self.steps, 4) if self.steps else None,
            "ended_us": ended_us,
        }
