# SPDX-License-Identifier: Apache-2.0
"""Ranks: which prompts each one measures, and whether the others still live.

Ranks share nothing but the output folder. Each writes its own records, and holds a lock on a marker
of its own, which the system lifts when the process ends, however that happens; rank 0 waits for the
others by their markers.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from vllm_eagle_pangu.config import refusal

LOOK_S = 0.25
# How long a rank may take to appear at all: starting Python on a busy machine.
APPEAR_S = 120.0


@dataclass(frozen=True)
class Rank:
    """One of `world_size` processes."""

    rank: int = 0
    world_size: int = 1

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Rank:
        """From RANK and WORLD_SIZE, as torchrun sets them; without them a single rank.

        Raises ValueError for a rank outside of the world.
        """
        rank, size = environment.get("RANK", "0"), environment.get("WORLD_SIZE", "1")
        if not rank.isdigit() or not size.isdigit() or not 0 <= int(rank) < int(size):
            raise refusal("RANK", rank, f"WORLD_SIZE is {size}", "set 0 <= RANK < WORLD_SIZE")
        return cls(int(rank), int(size))

    def owns(self, index: int) -> bool:
        return self.owner(index) == self.rank

    def owner(self, index: int) -> int:
        """The rank that measures the prompt of this index."""
        return index % self.world_size

    def others(self) -> list[int]:
        return [other for other in range(self.world_size) if other != self.rank]


def marker_file(folder: Path, rank: int) -> Path:
    return folder / "ranks" / f"rank-{rank}"


class Marker:
    """This rank's marker, locked while it lives; a context manager.

    Raises ValueError where the folder's file system has no locks.
    """

    def __init__(self, folder: Path, rank: Rank) -> None:
        path = marker_file(folder, rank.rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        if rank.rank == 0:
            # Left by an earlier run.
            for other in rank.others():
                if state_of(folder, other) in ("dead", "finished"):
                    marker_file(folder, other).write_bytes(b"")
        self._file = path.open("wb", buffering=0)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX)
        except OSError as error:
            mend = "name one on a file system that has locks"
            raise refusal("--out", str(folder), f"cannot lock a file ({error})", mend) from error
        self._file.write(b"started")

    def finish(self) -> None:
        """Everything of this rank is measured."""
        self._file.seek(0)
        self._file.write(b"finished")

    def __enter__(self) -> Marker:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()


def state_of(folder: Path, rank: int) -> str:
    """`absent`, `alive`, `finished` or `dead`."""
    try:
        file = marker_file(folder, rank).open("rb")
    except FileNotFoundError:
        return "absent"
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            locked = False
        except BlockingIOError:
            locked = True
        said = file.read()
    if said == b"finished":
        return "finished"
    if locked:
        return "alive"
    return "dead" if said else "absent"


def wait_for_others(
    folder: Path, rank: Rank, complete: Callable[[int], bool], appear_s: float = APPEAR_S
) -> list[int]:
    """Block until every other rank has finished or is dead; the dead ones.

    One that has not appeared within `appear_s` is dead, too, unless it has nothing left to do by
    `complete`: then it may have come and gone before this rank looked.
    """
    deadline = time.monotonic() + appear_s
    waiting, dead = rank.others(), []
    while waiting:
        for other in tuple(waiting):
            state = state_of(folder, other)
            if state == "dead" or (state == "absent" and time.monotonic() > deadline):
                dead.append(other)
            if other in dead or state == "finished" or (state == "absent" and complete(other)):
                waiting.remove(other)
        if waiting:
            time.sleep(LOOK_S)
    return sorted(dead)
