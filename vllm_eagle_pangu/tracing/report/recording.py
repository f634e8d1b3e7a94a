# SPDX-License-Identifier: Apache-2.0
"""A recorded run, read from its folder and checked."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from vllm_eagle_pangu.config import refusal
from vllm_eagle_pangu.tracing.reader import read_lines, read_manifest, run_folders
from vllm_eagle_pangu.tracing.schema import REQUESTS, STEPS

Record = TypeVar("Record")


@dataclass(frozen=True)
class Step:
    """One request's part in one engine step. Lists over rows have the root first.

    `number`: the engine step, the same for all requests of its batch, of which there are
    `batch_size`, traced or not.
    `tokens`, `parents`, `scores`: the tree; scores are cumulative log-probabilities, NaN or
    infinite only where the drafter is broken.
    `accepted`: rows of the accepted path, root included; `emitted`: its tokens, then the bonus.
    `stage_us`: microseconds by stage, of the whole batch.
    """

    number: int
    request: str
    batch_size: int
    prefix_tokens: int
    tokens: list[int]
    parents: list[int]
    scores: list[float]
    accepted: list[int]
    emitted: list[int]
    stage_us: dict[str, float]

    @property
    def nodes(self) -> int:
        """Drafted nodes, the root not counted."""
        return len(self.tokens) - 1

    @property
    def accepted_nodes(self) -> int:
        """L, the length of the accepted path."""
        return len(self.accepted) - 1


@dataclass(frozen=True)
class Request:
    """One finished request; `duration_us` is None where the run does not say."""

    name: str
    prompt_tokens: int
    output_tokens: int
    duration_us: float | None


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


def find_run(path: Path) -> Path:
    """The run folder `path`, or the only one in it.

    Raises:
        FileNotFoundError: there is none.
        ValueError: there are several.
    """
    runs = run_folders(path)
    if len(runs) > 1:
        names = ", ".join(run.name for run in runs[-3:])
        raise refusal(
            "run", str(path), f"{len(runs)} runs in it", f"pass one of them; the last are {names}"
        )
    return runs[0]


def read_recording(folder: Path) -> Recording:
    """The run in `folder`; one without steps or requests is a run all the same.

    Raises:
        ValueError: names the file and line, what is wrong there and the mend.
    """
    return Recording(
        folder=folder,
        manifest=read_manifest(folder),
        steps=list(_records(folder / STEPS, "step", _step)),
        requests=list(_records(folder / REQUESTS, "request", _request)),
    )


def _records(path: Path, kind: str, build: Callable[[dict[str, Any]], Record]) -> Iterator[Record]:
    if not path.is_file():
        return
    for number, record in enumerate(read_lines(path), start=1):
        if record.get("kind") != kind:
            continue
        try:
            yield build(record)
        except KeyError as error:
            raise _bad_record(f"{path}:{number}", f"a {kind} without the key {error}") from error
        except (AttributeError, TypeError, ValueError) as error:
            raise _bad_record(f"{path}:{number}", f"no proper {kind}: {error}") from error


def _step(record: dict[str, Any]) -> Step:
    step = Step(
        number=int(record["step"]),
        request=str(record["request"]),
        batch_size=int(record.get("batch_size", 1)),
        prefix_tokens=int(record["prefix_tokens"]),
        tokens=[int(token) for token in record["tokens"]],
        parents=[int(parent) for parent in record["parents"]],
        scores=[float(score) for score in record["scores"]],
        accepted=[int(row) for row in record["accepted_rows"]],
        emitted=[int(token) for token in record["emitted"]],
        stage_us={
            name.removesuffix("_us"): float(value)
            for name, value in record.get("stage_us", {}).items()
            if name.endswith("_us") and value is not None
        },
    )
    _check_tree(step)
    return step


def _check_tree(step: Step) -> None:
    rows = len(step.tokens)
    if not rows or len(step.parents) != rows or len(step.scores) != rows:
        raise ValueError("tokens, parents and scores must have one entry per row, root included")
    if any(not 0 <= parent < max(row, 1) for row, parent in enumerate(step.parents)):
        raise ValueError("a row's parent must stand before it")
    path = step.accepted
    if path[:1] != [0] or any(not 0 <= row < rows for row in path):
        raise ValueError("accepted_rows must be rows of the tree, 0 first")
    if any(step.parents[row] != above for above, row in pairwise(path)):
        raise ValueError("accepted_rows must lead from each row to one of its children")


def _request(record: dict[str, Any]) -> Request:
    started, ended = record.get("started_us"), record.get("ended_us")
    return Request(
        name=str(record["request"]),
        prompt_tokens=int(record["prompt_tokens"]),
        output_tokens=int(record["output_tokens"]),
        duration_us=None if started is None or ended is None else float(ended) - float(started),
    )


def _bad_record(place: str, problem: str) -> ValueError:
    return refusal("file", place, problem, "remove the line, or record the run anew")
