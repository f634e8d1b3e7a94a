# SPDX-License-Identifier: Apache-2.0
"""Records: one line for each measurement, appended as soon as it is there."""

import fcntl
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from vllm_eagle_pangu.config import refusal
from vllm_eagle_pangu.measure.files import write_csv

Record = dict[str, Any]
RECORDS = "records.jsonl"


class Key(NamedTuple):
    """What tells a record from all others."""

    experiment: str
    group: str
    method: str
    temperature: float
    prompt: str
    turn: int
    repeat: int


# What depends on the prompt and the method alone: the same whenever it was measured.
COUNTS = ("prompt_tokens", "output_tokens", "drafts", "drafted", "accepted", "full_drafts", "tau")


def key_of(record: Record) -> Key:
    return Key(*(record[name] for name in Key._fields))


def open_records(folder: Path) -> TextIO:
    """A folder's records, to append lines to, locked till they are closed or this process ends: a
    second run of the folder waits. A line that a killed process cut is taken off.

    Raises ValueError where the folder's file system has no locks.
    """
    path = folder / RECORDS
    folder.mkdir(parents=True, exist_ok=True)
    file = path.open("a", encoding="utf-8", buffering=1)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError as error:
        file.close()
        mend = "name one on a file system that has locks"
        raise refusal("--out", str(folder), f"cannot lock a file ({error})", mend) from error
    whole = path.read_bytes()
    if not whole.endswith(b"\n"):
        file.truncate(whole.rfind(b"\n") + 1)
    return file


def read_records(folder: Path) -> dict[Key, Record]:
    """By key. A measurement replaces an error, the later one the earlier."""
    found: dict[Key, Record] = {}
    path = folder / RECORDS
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    # Behind the last end of a line is nothing, or what was cut when a run was killed.
    for line in text.split("\n")[:-1]:
        record = json.loads(line)
        key = key_of(record)
        if "error" not in record or "error" in found.get(key, {"error": ""}):
            found[key] = record
    return found


def write_counts(records: Iterable[Record], path: Path) -> None:
    """The records without their times, as CSV; the output as a digest of its token ids."""
    rows = []
    for record in records:
        if "output_ids" in record:
            digest = hashlib.sha256(json.dumps(record["output_ids"]).encode()).hexdigest()[:16]
            counts = {name: record[name] for name in (*Key._fields, *COUNTS)}
            rows.append(counts | {"output": digest})
    write_csv(rows, path)
