# SPDX-License-Identifier: Apache-2.0
"""How much memory vLLM's CPU worker will find: of its NUMA node, and of its container."""

import os
import re
from pathlib import Path
from typing import NamedTuple

# Of what is free, this share goes to the engine, weights included; the rest to the server's other
# process and to whatever else starts.
SHARE = 0.75
# vLLM's own default, of all memory, free or not: with less free it does not start.
VLLM_SHARE = 0.92
GIB = 2**30
# A cgroup without a limit says "max", or a number near 2**63.
_UNLIMITED = 2**62


class Memory(NamedTuple):
    """Bytes."""

    available: int
    total: int

    def utilization(self) -> float:
        """For --gpu-memory-utilization, which is of all memory, on a CPU of all its memory too."""
        return max(1, int(100 * SHARE * self.available / self.total)) / 100


def memory(root: Path = Path("/")) -> Memory | None:
    """Where the first of our cores is; None where no file says. `root`: of proc and sys."""
    first = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    nodes = sorted((root / f"sys/devices/system/cpu/cpu{first}").glob("node*"))
    source = nodes[0] / "meminfo" if nodes else root / "proc/meminfo"
    if not source.is_file():
        return None
    kib = {key: int(n) for key, n in re.findall(r"([\w()]+):\s+(\d+) kB", source.read_text())}
    free = ("MemFree", "Active(file)", "Inactive(file)", "SReclaimable")
    available, total = (1024 * sum(map(kib.__getitem__, keys)) for keys in (free, ("MemTotal",)))
    cgroup = root / "sys/fs/cgroup"
    for limit, used in (
        (cgroup / "memory.max", cgroup / "memory.current"),
        (cgroup / "memory/memory.limit_in_bytes", cgroup / "memory/memory.usage_in_bytes"),
    ):
        most = _number(limit)
        if most < total:
            total, available = most, max(0, min(available, most - _number(used)))
    return Memory(available, total)


def _number(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return _UNLIMITED
