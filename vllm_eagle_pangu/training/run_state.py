# SPDX-License-Identifier: Apache-2.0
"""A run's state on disk: written atomically, so a kill leaves the last one whole."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

STATE_FILE = "state.pt"


@dataclass
class Position:
    """Where a run stands; data order and random draws follow from `step` and the seed."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0


def save_state(folder: Path, position: Position, **parts: Any) -> None:
    """Write `state.pt` under a temporary name, flush it, and move it into place."""
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / (STATE_FILE + ".partial")
    with open(partial, "wb") as file:
        torch.save({"position": asdict(position), **parts}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, folder / STATE_FILE)


def load_state(folder: Path) -> tuple[Position, dict[str, Any]] | None:
    """The last saved state, or None where the run has not saved one."""
    path = folder / STATE_FILE
    if not path.exists():
        return None
    parts = torch.load(path, map_location="cpu", weights_only=True)
    return Position(**parts.pop("position")), parts
