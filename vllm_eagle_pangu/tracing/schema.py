# SPDX-License-Identifier: Apache-2.0
"""The names and the version of what a run folder holds."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vllm_eagle_pangu.config import refusal

# Raised when a reader of the old form would misread the new one; new keys alone do not raise it.
SCHEMA = 1

MANIFEST = "manifest.json"
STEPS = "steps.jsonl"
REQUESTS = "requests.jsonl"
DUMPS = "dumps"


def check_schema(record: Mapping[str, Any], path: Path) -> None:
    """Raises ValueError, naming the file and both versions, where `record` is not of ours."""
    if record.get("schema") != SCHEMA:
        raise refusal(
            "schema",
            record.get("schema"),
            f"{path} is not of the trace schema that this version reads, which is {SCHEMA}",
            "read it with the vllm-eagle-pangu that wrote it (manifest.json says which), "
            "or record it anew",
        )


def parse_object(text: str, place: Path | str) -> dict[str, Any]:
    """The JSON object in `text`; raises ValueError, naming `place`, where there is none."""
    try:
        record = json.loads(text)
    except json.JSONDecodeError as error:
        raise _unreadable(place, f"not JSON ({error})") from error
    if not isinstance(record, dict):
        raise _unreadable(place, f"a JSON object is needed, not {type(record).__name__}")
    return record


def _unreadable(place: Path | str, problem: str) -> ValueError:
    return refusal("file", str(place), problem, "give a file as the tracer wrote it")
