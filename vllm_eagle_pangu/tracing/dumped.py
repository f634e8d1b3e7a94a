# SPDX-License-Identifier: Apache-2.0
"""A failure dump as `replay` sees it: request by request, whatever its values are."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import BeforeValidator, InstanceOf, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from vllm_eagle_pangu.checked import refusal, told
from vllm_eagle_pangu.core.paths import AcceptedPaths
from vllm_eagle_pangu.core.tree import TreeBatch
from vllm_eagle_pangu.tracing.schema import parse_record


def _integers(values: Sequence[int]) -> torch.Tensor:
    """`[1, n] int64`."""
    row = np.array([values])
    if row.dtype != np.int64:
        raise ValueError(f"{values} are not whole numbers")
    return torch.from_numpy(row)


def _tree(record: Mapping[str, Any]) -> TreeBatch:
    tree = TreeBatch(
        **{name: _integers(record[name]) for name in ("tokens", "parent", "depth")},
        valid=torch.tensor([record["valid"]], dtype=torch.bool),
        visible=torch.tensor([[[seen == "1" for seen in row] for row in record["visible"]]]),
        score=torch.tensor([[float(score) for score in record["score"]]]),
        max_depth=record["max_depth"],
    )
    rows = tree.tokens.shape
    columns = (tree.parent, tree.depth, tree.valid, tree.score)
    if {column.shape for column in columns} != {rows} or tree.visible.shape != (*rows, rows[1]):
        raise ValueError(f"a tree of {tree.rows} tokens has another number of rows elsewhere")
    return tree


def _path(record: Mapping[str, Any]) -> AcceptedPaths:
    path = AcceptedPaths(
        _integers(record["rows"]), _integers([record["length"]])[0], _integers(record["output"])
    )
    if path.rows.shape != path.output.shape:
        raise ValueError("a path has another number of rows than of tokens")
    return path


Integers = Annotated[InstanceOf[torch.Tensor], BeforeValidator(_integers)]
Tree = Annotated[InstanceOf[TreeBatch], BeforeValidator(_tree)]
Accepted = Annotated[InstanceOf[AcceptedPaths], BeforeValidator(_path)]


@dataclass(frozen=True)
class Finding:
    """A broken invariant: where it breaks first, and how."""

    invariant: str
    request: str
    rows: tuple[int, ...]
    detail: str

    def __str__(self) -> str:
        rows = f", rows {', '.join(map(str, self.rows))}" if self.rows else ""
        return f"{self.invariant}\n    request {self.request}{rows}: {self.detail}"


@dataclass(frozen=True)
class DumpedCache:
    """One KV cache group of a request; see `dump.CacheState`."""

    group: int
    block_size: int | None
    block_ids: list[int] | None
    linear_slots: list[int] | None
    commit_slots: list[int] | None


@dataclass(frozen=True)
class DumpedRequest:
    """What a dump knows of a request; see `dump.FailedStep`.

    `tree`, `path`: batches of one; `draws: [1, R] int64`.
    """

    request: str
    prompt_token_ids: list[int] | None
    output_token_ids: list[int] | None
    scheduled_token_ids: list[int] | None
    prefix_len: int | None
    count: int | None
    greedy: bool | None
    tree: Tree | None
    draws: Integers | None
    path: Accepted | None
    caches: list[DumpedCache]

    @property
    def token_ids(self) -> list[int] | None:
        """Prompt and output."""
        if self.prompt_token_ids is None or self.output_token_ids is None:
            return None
        return [*self.prompt_token_ids, *self.output_token_ids]

    @property
    def accepted(self) -> list[int] | None:
        """The accepted rows, root first, as far as there are that many."""
        path = self.path
        return None if path is None else path.rows[0, : int(path.length) + 1].tolist()

    def knows(self, name: str) -> bool:
        """Whether a field is known; one of caches, whether it is of all, and there are any."""
        holders: Sequence[object] = [self] if hasattr(self, name) else self.caches
        return bool(holders) and all(getattr(one, name) is not None for one in holders)

    def finding(self, invariant: str, rows: Sequence[int], detail: str) -> Finding:
        return Finding(invariant, self.request, tuple(rows), detail)


@dataclass(frozen=True)
class Dump:
    """`failure`: `type`, `message`, `invariant` and `traceback` of what was raised."""

    path: Path
    step: int | None
    written_at: str
    failure: Mapping[str, Any]
    manifest: Mapping[str, Any]
    requests: list[DumpedRequest]
    unreadable: list[str]


def read_dump(path: str | Path) -> Dump:
    """Raises FileNotFoundError, and ValueError for a file that is no dump of this schema."""
    path = Path(path)
    record = parse_record(path.read_text(encoding="utf-8"), path)
    if record.get("kind") != "dump":
        raise _no_dump(path, f"its kind is {record.get('kind')!r}")
    try:
        return TypeAdapter(Dump).validate_python(record | {"path": path})
    except ValidationError as error:
        raise _no_dump(path, told(error)) from error
    except (KeyError, RuntimeError, TypeError) as error:
        raise _no_dump(path, f"{type(error).__name__}: {error}") from error


def _no_dump(path: Path, problem: str) -> ValueError:
    return refusal(
        "dump", str(path), f"no failure dump ({problem})", "give a file of a run's dumps folder"
    )
