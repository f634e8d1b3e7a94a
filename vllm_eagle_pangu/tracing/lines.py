# SPDX-License-Identifier: Apache-2.0
"""A step of the engine as the lines of `steps.jsonl`."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.tracing.schema import SCHEMA

if TYPE_CHECKING:
    import torch


class StepEntry(NamedTuple):
    """What the engine hands over of a step of T trees: references, nothing computed.

    `requests: [T]` ids; `prefix_len: [T]` committed tokens; `shape`: of all trees or of each.
    `tokens`, `parent`, `score`, `valid: [T, R]` as in `TreeBatch`.
    `path_rows`, `path_output: [T, D+1]` and `path_length: [T]` as in `AcceptedPaths`.
    `stage_us`: microseconds by stage, of the whole batch.
    """

    time_us: int
    step: int
    batch_size: int
    requests: Sequence[str]
    prefix_len: "torch.Tensor | Sequence[int]"
    shape: TreeShape | Sequence[TreeShape]
    tokens: "torch.Tensor"
    parent: "torch.Tensor"
    score: "torch.Tensor"
    valid: "torch.Tensor"
    path_rows: "torch.Tensor"
    path_length: "torch.Tensor"
    path_output: "torch.Tensor"
    stage_us: Mapping[str, float]


class StepLine(NamedTuple):
    """One tree's line, and what it counts: nodes verified and accepted."""

    request: str
    nodes: int
    accepted: int
    text: bytes


def step_lines(entry: StepEntry, wants: Callable[[str], bool]) -> Iterator[StepLine]:
    """A line for each tree whose request is wanted.

    The text is put together by hand: the encoder takes twice as long, and holds the GIL.
    """
    stage_us = compact({name: round(value, 1) for name, value in entry.stage_us.items()})
    prefix_len, shape = _listed(entry.prefix_len), entry.shape
    shapes = [shape] * len(prefix_len) if isinstance(shape, TreeShape) else shape
    tokens, parents, scores = entry.tokens.tolist(), entry.parent.tolist(), entry.score.tolist()
    valid, lengths = entry.valid.tolist(), entry.path_length.tolist()
    path_rows, output = entry.path_rows.tolist(), entry.path_output.tolist()
    for tree, request in enumerate(entry.requests):
        if not wants(request):
            continue
        rows, emitted, shape = sum(valid[tree]), lengths[tree] + 1, shapes[tree]
        text = (
            f'{{"schema":{SCHEMA},"kind":"step","step":{entry.step},"request":{compact(request)},'
            f'"time_us":{entry.time_us},"batch_size":{entry.batch_size},'
            f'"prefix_tokens":{prefix_len[tree]},'
            f'"shape":{{"width":{shape.width},"depth":{shape.depth},"nodes":{shape.nodes}}},'
            f'"tokens":{_integers(tokens[tree][:rows])},'
            f'"parents":{_integers(parents[tree][:rows])},'
            f'"scores":{_scores(scores[tree][:rows])},'
            f'"accepted_rows":{_integers(path_rows[tree][:emitted])},'
            f'"emitted":{_integers(output[tree][:emitted])},"stage_us":{stage_us}}}\n'
        )
        yield StepLine(request, rows - 1, emitted - 1, text.encode())


# One encoder for all: `json.dumps` with separators makes a new one each time.
_ENCODER = json.JSONEncoder(separators=(",", ":"))


def compact(value: Any) -> str:
    """JSON without spaces."""
    return _ENCODER.encode(value)


def _integers(values: list[int]) -> str:
    return str(values).replace(" ", "")


def _scores(values: list[float]) -> str:
    """Four decimals. Only broken drafts are not finite; JSON has no word for that, Python has."""
    if not math.isfinite(sum(values)):
        return compact(values)
    return "[" + ("%.4f," * len(values) % tuple(values))[:-1] + "]"


def _listed(values: "torch.Tensor | Sequence[int]") -> list[int]:
    return list(values) if isinstance(values, Sequence) else values.tolist()
