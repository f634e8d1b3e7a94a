# SPDX-License-Identifier: Apache-2.0
"""Failure dumps: what was known of a step when it failed, to be checked again by `replay`."""

import json
import logging
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_eagle_pangu.core.paths import AcceptedPaths
from vllm_eagle_pangu.core.tree import TreeBatch
from vllm_eagle_pangu.tracing.manifest import utc_now, write_json
from vllm_eagle_pangu.tracing.schema import SCHEMA

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

MAX_DUMPS = 8
# Beyond this a dump goes without token ids, which alone grow with the context.
MAX_DUMP_BYTES = 32 * 2**20

Integers = Sequence[int]


@dataclass
class CacheState:
    """A KV cache group of T requests, as far as known.

    `block_size` and `block_ids: [T]` are the block table's own. `linear_slots: [T, R] int64`: entry
    [b, i] is the slot of position t + i. `commit_slots: [T, R] int64`: see `kv_commit`.
    """

    group: int = 0
    block_size: int | None = None
    block_ids: Sequence[Integers] | None = None
    linear_slots: "torch.Tensor | None" = None
    commit_slots: "torch.Tensor | None" = None


@dataclass
class FailedStep:
    """What is known of a step over T trees; None is what was not known yet.

    `requests: [T]` ids, in the order of the trees; everything else follows that order.
    `prompt_token_ids`, `output_token_ids: [T]` lists; the outputs include the root, at position t.
    `scheduled_token_ids: [T]`: the nodes' tokens that the scheduler sent.
    `prefix_len: [T]`: t, committed tokens. `count: [T]`: rows scheduled, root included.
    `greedy: [T]`: whether the draws are the argmax of the target's logits, nothing added to them.
    `draws: [T, R] int64`: the target's token at each row, -1 where none was drawn.
    """

    requests: Sequence[str] = ()
    step: int | None = None
    prompt_token_ids: Sequence[Integers | None] | None = None
    output_token_ids: Sequence[Integers] | None = None
    scheduled_token_ids: Sequence[Integers] | None = None
    prefix_len: "torch.Tensor | Integers | None" = None
    count: "torch.Tensor | Integers | None" = None
    greedy: Sequence[bool] | None = None
    tree: TreeBatch | None = None
    draws: "torch.Tensor | None" = None
    path: AcceptedPaths | None = None
    caches: Sequence[CacheState] = field(default_factory=tuple)


def write_dump(
    directory: str | Path,
    error: BaseException,
    failed: FailedStep,
    manifest: Mapping[str, Any] | None = None,
) -> Path | None:
    """Write a new file into `directory`, at most `MAX_DUMPS` of them; None where that is not done.

    `manifest`: of the run. Never raises: whatever goes wrong is logged once, for `error` is what
    its caller has to deal with.
    """
    try:
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        count = len(list(folder.glob("*.json")))
        if count >= MAX_DUMPS:
            logger.warning("traces: %d failure dumps written, no more in this run", count)
            return None
        path = folder / f"{count:02d}-{type(error).__name__}.json"
        record = _record(error, failed, manifest or {})
        if len(json.dumps(record, default=str)) > MAX_DUMP_BYTES:
            lost = f"token ids: left out, the dump exceeds {MAX_DUMP_BYTES} bytes"
            record["unreadable"].append(lost)
            for request in record["requests"]:
                request["prompt_token_ids"] = request["output_token_ids"] = None
        write_json(path, record, indent=None)
    except Exception:
        logger.warning("traces: no failure dump could be written", exc_info=True)
        return None
    logger.warning("traces: failure dump in %s; read it with: eagle-pangu replay %s", path, path)
    return path


def _record(
    error: BaseException, failed: FailedStep, manifest: Mapping[str, Any]
) -> dict[str, Any]:
    unreadable: list[str] = []
    message = str(error)
    # Our asserts say which invariant does not hold.
    invariant = isinstance(error, AssertionError) and message.partition("\n")[0]
    return {
        "schema": SCHEMA,
        "kind": "dump",
        "written_at": utc_now(),
        "step": failed.step,
        "failure": {
            "type": type(error).__name__,
            "message": message,
            "invariant": invariant or None,
            "traceback": traceback.format_exception(error),
        },
        "manifest": dict(manifest),
        "requests": [
            {"request": request, **_request(failed, index, unreadable)}
            for index, request in enumerate(failed.requests)
        ],
        "unreadable": unreadable,
    }


def _plain(values: Any, index: int) -> Any:
    """Entry `index` of a tensor or sequence as plain Python, or of each field of a dataclass.

    None and numbers are the same for every entry.
    """
    if values is None or isinstance(values, int):
        return values
    if is_dataclass(values):
        return {field.name: _plain(getattr(values, field.name), index) for field in fields(values)}
    value = values[index]
    if hasattr(value, "tolist"):
        return value.tolist()
    return list(value) if isinstance(value, Sequence) else value


def _request(failed: FailedStep, index: int, unreadable: list[str]) -> dict[str, Any]:
    """What is known of one request; a field that cannot be read is named in `unreadable`."""
    known: dict[str, Any] = {}
    for name, values in vars(failed).items():
        if name in ("requests", "step"):
            continue
        try:
            known[name] = _READERS.get(name, _plain)(values, index)
        except Exception as error:
            unreadable.append(f"{name} of request {index}: {type(error).__name__}: {error}")
            known[name] = [] if name == "caches" else None
    return known


def _tree(tree: TreeBatch | None, index: int) -> dict[str, Any] | None:
    known = _plain(tree, index)
    if known is not None:
        # As text, for JSON has neither infinities nor NaN.
        known["score"] = [repr(score) for score in known["score"]]
        known["visible"] = ["".join("01"[seen] for seen in row) for row in known["visible"]]
    return known


def _caches(caches: Sequence[CacheState], index: int) -> list[dict[str, Any]]:
    return [_plain(state, index) for state in caches]


_READERS: dict[str, Callable[[Any, int], Any]] = {"tree": _tree, "caches": _caches}
