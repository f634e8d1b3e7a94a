# SPDX-License-Identifier: Apache-2.0
"""What makes a run safe to kill: files that are whole or not there, and of known inputs."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vllm_eagle_pangu.config import refusal
from vllm_eagle_pangu.training.ranks import Ranks

INPUTS_FILE = "inputs.json"


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A partial file, which takes the place of `path` when the block has written it.

    Raises ValueError where the disk does not take it, and leaves what was there. safetensors'
    `save_file` writes to a file of its own beside it, which stays where it is killed: use `save`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    try:
        yield partial
        os.replace(partial, path)
    except (OSError, RuntimeError) as error:  # torch's, too
        mend = "make room, and run the same command"
        raise refusal("run_dir", str(path), str(error), mend) from error
    finally:
        partial.unlink(missing_ok=True)


def check_inputs(folder: Path, inputs: dict[str, Any], ranks: Ranks) -> None:
    """Keep what a folder is prepared from, or compare with it; the first rank for all.

    Raises ValueError where the folder was prepared from something else.
    """
    if ranks.first:
        path, now = folder / INPUTS_FILE, json.dumps(inputs, indent=1, sort_keys=True)
        if not path.exists():
            with whole_file(path) as partial:
                partial.write_text(now)
        before = json.loads(path.read_text())
        for key, value in json.loads(now).items():
            if before.get(key) != value:
                problem = f"was prepared with another {key}: {before.get(key)!r}"
                mend = "name another run_dir, or remove this folder"
                raise refusal("run_dir", str(folder), problem, mend)
    ranks.meet()
