# SPDX-License-Identifier: Apache-2.0
"""A failure dump as `replay` sees it: plain lists, so that nothing in it is too broken to hold."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from vllm_eagle_pangu.config import refusal
from vllm_eagle_pangu.core.paths import AcceptedPaths
from vllm_eagle_pangu.core.tree import TreeBatch
from vllm_eagle_pangu.tracing.schema import check_schema, parse_object


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
class DumpedTree:
    """One tree of R rows; the fields are those of `TreeBatch`."""

    tokens: list[int]
    parent: list[int]
    depth: list[int]
    valid: list[bool]
    score: list[float]
    visible: list[list[bool]]
    max_depth: int

    @property
    def rows(self) -> int:
        """R."""
        return len(self.tokens)

    @property
    def nodes(self) -> list[int]:
        """Valid rows but the root's."""
        return [row for row in range(1, self.rows) if self.valid[row]]

    def has_row(self, row: int) -> bool:
        return 0 <= row < self.rows

    @cached_property
    def well_linked(self) -> bool:
        """Whether every parent is an earlier row, so that walking upwards ends at the root."""
        return self.parent[:1] == [0] and all(
            0 <= self.parent[row] < row for row in range(1, self.rows) if self.valid[row]
        )

    def path_to(self, row: int) -> set[int] | None:
        """`row` and its ancestors; None where walking upwards never comes to the root."""
        path = {row}
        while row != 0:
            row = self.parent[row]
            if not self.has_row(row) or row in path:
                return None
            path.add(row)
        return path

    def batch(self) -> TreeBatch:
        """The same as a batch of one."""
        return TreeBatch(
            tokens=torch.tensor([self.tokens]),
            parent=torch.tensor([self.parent]),
            depth=torch.tensor([self.depth]),
            valid=torch.tensor([self.valid], dtype=torch.bool),
            visible=torch.tensor([self.visible]),
            score=torch.tensor([self.score], dtype=torch.float32),
            max_depth=self.max_depth,
        )


@dataclass(frozen=True)
class DumpedPath:
    """One accepted path; the fields are those of `AcceptedPaths`."""

    rows: list[int]
    length: int
    output: list[int]

    @property
    def accepted(self) -> list[int]:
        """The accepted rows, root first, as far as there are that many."""
        return self.rows[: self.length + 1]

    def batch(self) -> AcceptedPaths:
        """The same as a batch of one."""
        rows, length, output = map(torch.tensor, ([self.rows], [self.length], [self.output]))
        return AcceptedPaths(rows, length, output)


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
    """What a dump knows of a request; see `dump.FailedStep`."""

    request: str
    prompt_token_ids: list[int] | None
    output_token_ids: list[int] | None
    scheduled_token_ids: list[int] | None
    prefix_len: int | None
    count: int | None
    greedy: bool | None
    tree: DumpedTree | None
    draws: list[int] | None
    path: DumpedPath | None
    caches: list[DumpedCache]

    @property
    def token_ids(self) -> list[int] | None:
        """Prompt and output."""
        if self.prompt_token_ids is None or self.output_token_ids is None:
            return None
        return [*self.prompt_token_ids, *self.output_token_ids]

    def finding(self, invariant: str, rows: list[int], detail: str) -> Finding:
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
    record = parse_object(path.read_text(encoding="utf-8"), path)
    check_schema(record, path)
    if record.get("kind") != "dump":
        raise _no_dump(path, f"its kind is {record.get('kind')!r}")
    try:
        return Dump(
            path=path,
            step=record["step"],
            written_at=record["written_at"],
            failure=record["failure"],
            manifest=record["manifest"],
            requests=[_request(request) for request in record["requests"]],
            unreadable=record["unreadable"],
        )
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        raise _no_dump(path, f"{type(error).__name__}: {error}") from error


def _request(record: Mapping[str, Any]) -> DumpedRequest:
    known = {name: record[name] for name in _AS_WRITTEN}
    return DumpedRequest(
        **known,
        tree=None if record["tree"] is None else _tree(record["tree"]),
        path=None if record["path"] is None else _path(record["path"]),
        caches=[DumpedCache(**cache) for cache in record["caches"]],
    )


_AS_WRITTEN = (
    "request",
    "prompt_token_ids",
    "output_token_ids",
    "scheduled_token_ids",
    "prefix_len",
    "count",
    "greedy",
    "draws",
)


def _tree(record: Mapping[str, Any]) -> DumpedTree:
    tree = DumpedTree(
        **{name: record[name] for name in ("tokens", "parent", "depth", "valid", "max_depth")},
        score=[float(score) for score in record["score"]],
        visible=[[seen == "1" for seen in row] for row in record["visible"]],
    )
    lengths = {len(column) for column in (tree.parent, tree.depth, tree.valid, tree.score)}
    lengths |= {len(tree.visible), *map(len, tree.visible)}
    if lengths != {tree.rows}:
        raise ValueError(f"a tree of {tree.rows} tokens has another number of rows elsewhere")
    if {type(value) for value in (*tree.tokens, *tree.parent, *tree.depth)} != {int}:
        raise ValueError("a tree's tokens, parents and depths are not whole numbers")
    tree.batch()
    return tree


def _path(record: Mapping[str, Any]) -> DumpedPath:
    path = DumpedPath(**record)
    if {type(value) for value in (*path.rows, *path.output, path.length)} != {int}:
        raise ValueError("a path's rows, length and output are not whole numbers")
    return path


def _no_dump(path: Path, problem: str) -> ValueError:
    return refusal(
        "dump", str(path), f"no failure dump ({problem})", "give a file of a run's dumps folder"
    )
