# SPDX-License-Identifier: Apache-2.0
"""A step of the engine as the lines of `steps.jsonl`, a request as its line in `requests.jsonl`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic_core import to_json

from vllm_eagle_pangu.core.paths import AcceptedPaths
from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.core.tree import TreeBatch
from vllm_eagle_pangu.tracing.schema import SCHEMA


class StepEntry(NamedTuple):
    """What the engine hands over of a step of T trees: references, nothing computed.

    `time_us`: of the writer's `now_us`. `batch_size`: requests in the step, with and without a
    tree. `requests: [T]` ids; `prefix_len: [T]` committed tokens before each root; `shapes: [T]`,
    as drafted. `stage_us`: microseconds by stage, of the whole batch, each name ending in `_us`.

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


class StepLine(NamedTuple):
    """One tree's line, and what it counts: nodes verified and accepted."""

    request: str
    nodes: int
    accepted: int
    text: bytes


def step_lines(entry: StepEntry, wants: Callable[[str], bool]) -> Iterator[StepLine]:
    """A line for each tree whose request is wanted."""
    stage_us = {name: round(value, 1) for name, value in entry.stage_us.items()}
    trees, paths = entry.tree, entry.paths
    tokens, parents, scores = trees.tokens.tolist(), trees.parent.tolist(), trees.score.tolist()
    valid, lengths = trees.valid.tolist(), paths.length.tolist()
    path_rows, output = paths.rows.tolist(), paths.output.tolist()
    for tree, request in enumerate(entry.requests):
        if not wants(request):
            continue
        rows, emitted = sum(valid[tree]), lengths[tree] + 1
        record = {
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
            "stage_us": stage_us,
        }
        yield StepLine(request, rows - 1, emitted - 1, _line(record))


@dataclass
class RequestTotals:
    """Steps that verified a tree of a request, nodes verified in them, nodes accepted."""

    started_us: int
    steps: int = 0
    nodes: int = 0
    accepted: int = 0

    def line(self, request: str, prompt_tokens: int, output_tokens: int, ended_us: int) -> bytes:
        """The request's line."""
        record = {
            "schema": SCHEMA,
            "kind": "request",
            "request": request,
            "prompt_tokens": prompt_tokens,
            "output_tokens": output_tokens,
            "steps": self.steps,
            "nodes": self.nodes,
            "accepted": self.accepted,
            "tau": round(1 + self.accepted / self.steps, 4) if self.steps else None,
            "started_us": self.started_us,
            "ended_us": ended_us,
        }
        return _line(record)


def _line(record: Mapping[str, Any]) -> bytes:
    """JSON without spaces, by pydantic's encoder: `json`'s takes twice as long.

    Only broken drafts' scores are not finite; JSON has no word for that, Python has.
    """
    return to_json(record, inf_nan_mode="constants") + b"\n"
