# SPDX-License-Identifier: Apache-2.0
"""Ranks: which prompts each one measures, and whether the others still live.

Ranks share nothing but the output folder. Each writes its own records, and holds a lock on them,
which the system lifts when the process ends, however that happens; rank 0 waits for the others by
their locks.
"""

import fcntl
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from vllm_eagle_pangu.bench.records import record_file
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
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "Rank":
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


def is_locked(path: Path) -> bool:
    """Whether a process that lives has locked this file."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        pass
    return False


def wait_for_others(
    folder: Path, rank: Rank, complete: Callable[[int], bool], appear_by: float
) -> None:
    """Block until no other rank lives any more.

    One that was not seen yet may still appear until `appear_by` of the monotonic clock, unless it
    has nothing left to do by `complete`: then it may have come and gone before this rank looked.
    """
    unseen = set(rank.others())
    while True:
        living = {other for other in rank.others() if is_locked(record_file(folder, other))}
        unseen -= living
        if not living and (time.monotonic() > appear_by or all(map(complete, unseen))):
            return
        time.sleep(LOOK_S)
