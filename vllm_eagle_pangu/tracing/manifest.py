# SPDX-License-Identifier: Apache-2.0
"""`manifest.json`: what a run was of."""

import json
import os
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from vllm_eagle_pangu.config import refusal
from vllm_eagle_pangu.tracing.config import TraceConfig
from vllm_eagle_pangu.tracing.provenance import provenance
from vllm_eagle_pangu.tracing.schema import SCHEMA


def utc_now() -> str:
    """ISO 8601, UTC, milliseconds."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


def start_run(
    config: TraceConfig, configuration: Mapping[str, Any], seed: int | None, device: str
) -> tuple[Path, dict[str, Any]]:
    """`DIRECTORY/UTC-PID`, new, and the manifest of a run that starts now.

    Raises ValueError where the folder cannot be made.
    """
    run = f"{datetime.now(timezone.utc):%Y%m%dT%H%M%S.%f}Z-{os.getpid()}"
    folder = Path(config.directory) / run
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise refusal(
            "trace_dir",
            config.directory,
            f"no folder can be made there ({error})",
            'set "trace_dir" to a folder that this user may write to',
        ) from error
    return folder, {
        "schema": SCHEMA,
        "kind": "manifest",
        "run": run,
        "pid": os.getpid(),
        "started_at": utc_now(),
        "ended_at": None,
        "seed": seed,
        "trace": {"sample_rate": config.sample_rate, "max_bytes": config.max_bytes},
        "configuration": dict(configuration),
        **provenance(device),
    }


def write_json(path: Path, record: Mapping[str, Any], indent: int | None = 1) -> None:
    """Write a file whole or not at all, whoever else does; what JSON does not know is written as
    its `str`."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    partial.write_text(json.dumps(record, indent=indent, default=str) + "\n", encoding="utf-8")
    os.replace(partial, path)
