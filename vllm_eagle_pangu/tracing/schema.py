# SPDX-License-Identifier: Apache-2.0
"""The names and the version of what a run folder holds."""

import json
from pathlib import Path
from typing import Any

from vllm_eagle_pangu.config import refusal

# Raised when a reader of the old form would misread the new one; new keys alone do not raise it.
SCHEMA = 1

MANIFEST = "manifest.json"
STEPS = "steps.jsonl"
REQUESTS = "requests.jsonl"
DUMPS = "dumps"


def parse_record(text: str, place: Path | str) -> dict[str, Any]:
    """The JSON object in `text`.

    Raises ValueError, naming `place`, where there is none, or one that is not of our schema.
    """
    try:
        record = json.loads(text)
        problem = f"a JSON object is needed, not {type(record).__name__}"
    except json.JSONDecodeError as error:
        record, problem = None, f"not JSON ({error})"
    if not isinstance(record, dict):
        raise refusal("file", str(place), problem, "give a file as the tracer wrote it")
    if record.get("schema") != SCHEMA:
        raise refusal(
            "schema",
            record.get("schema"),
            f"{place} is not of the trace schema that this version reads, which is {SCHEMA}",
            "read it with the vllm-eagle-pangu that wrote it (manifest.json says which), "
            "or record it anew",
        )
    return record
