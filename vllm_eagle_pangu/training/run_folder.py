# SPDX-License-Identifier: Apache-2.0
"""Files of a run: whole or not there, refused where the disk is full, of known inputs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from vllm_eagle_pangu.config import refusal
from vllm_eagle_pangu.training.ranks import Ranks

INPUTS_FILE = "inputs.json"


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A partial file, which takes the place of `path` when the block has written it.

    Raises ValueError where the disk does not take it, and leaves what was there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    try:
        yield partial
        os.replace(partial, path)
    except (OSError, RuntimeError, SafetensorError) as error:  # torch's and safetensors', too
        mend = "make room, and run the same command"
        raise refusal("run_dir", str(path), str(error), mend) from error
    finally:
        partial.unlink(missing_ok=True)


def check_inputs(folder: Path, inputs: dict[str, Any], ranks: Ranks) -> None:
    """Keep what a folder is prepared from, or compare with it; the first rank for all.

    Raises ValueError where the folder was prepared from something else.
    """
    if ranks.first:
        _check_inputs(folder / INPUTS_FILE, inputs)
    ranks.meet()


def _check_inputs(path: Path, inputs: dict[str, Any]) -> None:
    now = json.dumps(inputs, indent=1, sort_keys=True)
    if not path.exists():
        with whole_file(path) as partial:
            partial.write_text(now)
        return
    before = json.loads(path.read_text())
    for key, value in json.loads(now).items():
        if before.get(key) != value:
            raise refusal(
                "run_dir",
                str(path.parent),
                f"was prepared with another {key}: {before.get(key)!r}",
                "name another run_dir, or remove this folder",
            )
