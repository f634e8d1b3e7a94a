# SPDX-License-Identifier: Apache-2.0
"""Ranks: which prompts each one measures, and whether the others still live.

Ranks share nothing but the output folder. Each writes its own records and, once a second, its own
marker; rank 0 waits for the others by their markers.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from vllm_eagle_pangu.config import refusal

HEARTBEAT_S = 1.0
# A process on another machine is dead when it has not written for so long.
SILENT_S = 60.0
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
    return folder / "ranks" / f"rank-{rank}.json"


class Marker:
    """This rank's marker, rewritten every second by a thread; a context manager."""

    def __init__(self, folder: Path, rank: Rank) -> None:
        self._path = marker_file(folder, rank.rank)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if rank.rank == 0:
            # Left by an earlier run; who lives writes it again within a second.
            for other in rank.others():
                marker_file(folder, other).unlink(missing_ok=True)
        self._done = threading.Event()
        self._finished = False
        self._thread = threading.Thread(target=self._beat, name="bench-heartbeat", daemon=True)

    def finish(self) -> None:
        """Everything of this rank is measured."""
        self._finished = True
        self._write()

    def __enter__(self) -> Marker:
        self._write()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._done.wait(HEARTBEAT_S):
            self._write()

    def _write(self) -> None:
        content = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "created": psutil.Process().create_time(),
            "finished": self._finished,
        }
        # Unique per thread: `finish` may write while the heart beats.
        part = self._path.with_suffix(f".{threading.get_ident()}")
        part.write_text(json.dumps(content), encoding="utf-8")
        part.replace(self._path)


def state_of(folder: Path, rank: int) -> str:
    """`absent`, `alive`, `finished` or `dead`."""
    path = marker_file(folder, rank)
    try:
        marker = json.loads(path.read_text(encoding="utf-8"))
        silent = time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return "absent"
    if marker["finished"]:
        return "finished"
    if marker["host"] != socket.gethostname():
        return "dead" if silent > SILENT_S else "alive"
    try:
        process = psutil.Process(marker["pid"])
        same = process.create_time() == marker["created"]
        alive = same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        alive = False
    return "alive" if alive else "dead"


def wait_for_others(
    folder: Path, rank: Rank, complete: Callable[[int], bool], appear_s: float = APPEAR_S
) -> list[int]:
    """Block until every other rank has finished or is dead; the dead ones.

    One that has not appeared within `appear_s` is dead, too, unless it has nothing left to do by
    `complete`: then it may have come and gone before this rank looked.
    """
    deadline = time.monotonic() + appear_s
    waiting: set[int] = set(rank.others())
    dead: set[int] = set()
    while waiting:
        for other in sorted(waiting):
            state = state_of(folder, other)
            if state == "dead" or (state == "absent" and time.monotonic() > deadline):
                dead.add(other)
            over = state == "finished" or other in dead
            if over or (state == "absent" and complete(other)):
                waiting.discard(other)
        if waiting:
            time.sleep(HEARTBEAT_S / 4)
    return sorted(dead)
