# SPDX-License-Identifier: Apache-2.0
"""A recorded run, read from its folder and checked."""

import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
from pydantic import AfterValidator, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from vllm_eagle_pangu.checked import refusal, told
from vllm_eagle_pangu.kernels.tree_prune.reference import LEAST, MOST
from vllm_eagle_pangu.tracing.reader import read_lines, read_manifest
from vllm_eagle_pangu.tracing.schema import REQUESTS, STEPS

Record = TypeVar("Record")


def _microseconds(values: dict[str, float]) -> dict[str, float]:
    """Of what a line says of times, those of stages, by stage."""
    return {
        name.removesuffix("_us"): value for name, value in values.items() if name.endswith("_us")
    }


@dataclass(frozen=True)
class Step:
    """One request's part in one engine step. Lists over rows have the root first.

    `number`: the engine step, the same for all requests of its batch, of which there are
    `batch_size`, traced or not.
    `tokens`, `parents`, `scores`: the tree; scores are cumulative log-probabilities, NaN or
    infinite only where the drafter is broken.
    `accepted`: rows of the accepted path, root included; `emitted`: its tokens, then the bonus.
    `stage_us`: microseconds by stage, of the whole batch. `belief`: the line of log-odds by which
    these nodes were chosen; None where nobody chose.
    """

    number: Annotated[int, Field(validation_alias="step")]
    request: str
    batch_size: int
    prefix_tokens: int
    tokens: list[int]
    parents: list[int]
    scores: list[float]
    accepted: Annotated[list[int], Field(validation_alias="accepted_rows")]
    emitted: list[int]
    stage_us: Annotated[dict[str, float], AfterValidator(_microseconds)]
    belief: tuple[float, float, float] | None = None

    def __post_init__(self) -> None:
        rows, path = len(self.tokens), self.accepted
        if not rows or len(self.parents) != rows or len(self.scores) != rows:
            raise ValueError(
                "tokens, parents and scores must have one entry per row, root included"
            )
        if any(not 0 <= parent < max(row, 1) for row, parent in enumerate(self.parents)):
            raise ValueError("a row's parent must stand before it")
        if path[:1] != [0] or any(not 0 <= row < rows for row in path):
            raise ValueError("accepted_rows must be rows of the tree, 0 first")
        if any(self.parents[row] != above for above, row in pairwise(path)):
            raise ValueError("accepted_rows must lead from each row to one of its children")

    @property
    def nodes(self) -> int:
        """Drafted nodes, the root not counted."""
        return len(self.tokens) - 1

    def promised(self, belief: tuple[float, float, float]) -> list[float]:
        """Log-probabilities of the nodes' paths, by what was believed of the drafter's: those of
        `kernels.tree_prune`, for trees of any size without torch."""
        found = [0.0]
        # By parent, its likeliest child.
        first = dict[int, int]()
        for row, parent in enumerate(self.parents[1:], start=1):
            if self.scores[row] > self.scores[first.setdefault(parent, row)]:
                first[parent] = row
        for row, parent in enumerate(self.parents[1:], start=1):
            said = min(max(self.scores[row] - self.scores[parent], LEAST), MOST)
            odds = belief[0] + belief[1] * (said - math.log(-math.expm1(said)))
            odds += belief[2] * (first[parent] == row)
            found.append(found[parent] - float(np.logaddexp(0.0, -odds)))
        return found[1:]


@dataclass(frozen=True)
class Request:
    """One finished request."""

    name: Annotated[str, Field(validation_alias="request")]
    prompt_tokens: int
    output_tokens: int
    started_us: float
    ended_us: float

    @property
    def duration_us(self) -> float:
        return self.ended_us - self.started_us


@dataclass(frozen=True)
class Recording:
    """`manifest`: as it stands in the file, only known to be an object."""

    folder: Path
    manifest: dict[str, Any]
    steps: list[Step]
    requests: list[Request]

    @property
    def name(self) -> str:
        return str(self.manifest.get("run") or self.folder.resolve().name)


def read_recording(folder: Path) -> Recording:
    """The run in `folder`; one without steps or requests is a run all the same.

    Raises:
        ValueError: names the file and line, what is wrong there and the mend.
    """
    return Recording(
        folder=folder,
        manifest=read_manifest(folder),
        steps=list(_records(folder / STEPS, "step", Step)),
        requests=list(_records(folder / REQUESTS, "request", Request)),
    )


def _records(path: Path, name: str, kind: type[Record]) -> Iterator[Record]:
    known = TypeAdapter(kind)
    for number, record in enumerate(read_lines(path), start=1):
        if record.get("kind") != name:
            continue
        try:
            yield known.validate_python(record)
        except ValidationError as error:
            mend = "remove the line, or record the run anew"
            raise refusal(
                "file", f"{path}:{number}", f"no proper {name}: {told(error)}", mend
            ) from error
