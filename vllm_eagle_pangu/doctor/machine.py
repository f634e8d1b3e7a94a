# SPDX-License-Identifier: Apache-2.0
"""The machine, the compiler that the C++ ops need, and the device by name and versions.

Nothing of Ascend's is imported unless the device is an NPU.
"""

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from vllm_eagle_pangu.doctor.device import CPU, CUDA, NPU
from vllm_eagle_pangu.doctor.finding import OK, WRONG, Finding
from vllm_eagle_pangu.doctor.traps import pip
from vllm_eagle_pangu.serving import needs
from vllm_eagle_pangu.tracing.provenance import cpu_info, cpu_name

# As /proc/cpuinfo spells what decides which attention and GEMM run.
_ISA = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "bf16", "sve")
_BFLOAT16 = {"avx512_bf16", "amx_bf16", "bf16"}
# What vllm-ascend 0.23.0 is for: docs/source/installation.md there.
CANN_LINE = "9.1."
ASCEND_PACKAGE = "vllm-ascend>=0.23,<0.24"
_TOOLKIT = "/usr/local/Ascend/ascend-toolkit"
_SET_ENV = f"source {_TOOLKIT}/set_env.sh"
_VERSION = re.compile(r"^version\s*=\s*\[?([^\s:\]]+)", re.I | re.M)


def machine() -> Finding:
    flags = _flags()
    isa = [name for name in _ISA if name in flags]
    if platform.machine() == "x86_64" and flags and "amx_bf16" not in flags:
        isa.append("no amx")
    cpus = f"{needs.cores()} of {os.cpu_count()} cores"
    return Finding("machine", OK, ", ".join([f"{platform.machine()} ({cpu_name()})", cpus, *isa]))


def _flags() -> set[str]:
    named = re.findall(r"^(?:flags|Features)\s*:(.*)$", cpu_info(), re.M)
    return set(" ".join(named).split())


def compiler() -> Finding:
    if not needs.runs_on_cpu():
        return Finding("compiler", OK, "no g++ needed: vLLM is no CPU build")
    path = shutil.which("g++")
    if path is None:
        problem = "g++ is not on PATH, and the C++ ops are compiled at first use"
        return Finding("compiler", WRONG, problem, "apt install g++")
    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    if done.returncode:
        return Finding("compiler", WRONG, f"{path} --version ends with code {done.returncode}")
    return Finding("compiler", OK, done.stdout.splitlines()[0])


def facts(device: str) -> Iterator[Finding]:
    # Beside other work the speeds of the last rung say little.
    load = f"{os.getloadavg()[0]:.1f} processes at work in the last minute, {needs.cores()} cores"
    yield Finding("load", OK, load)
    yield from {CPU: _cpu, CUDA: _cuda, NPU: _npu}[device]()


def _cpu() -> Iterator[Finding]:
    import torch

    isa = torch.backends.cpu.get_cpu_capability()
    seen = f"{torch.get_num_threads()} threads of torch's, whose kernels are {isa}"
    flags = _flags()
    if flags and not flags & _BFLOAT16:
        seen += "; it has no bfloat16 of its own, --dtype=float32 may be faster"
    yield Finding(CPU, OK, seen)


def _cuda() -> Iterator[Finding]:
    import torch

    if not torch.cuda.is_available():
        yield Finding(CUDA, WRONG, f"torch {torch.__version__} sees no GPU")
        return
    found = torch.cuda.get_device_properties(0)
    sizes = f"sm_{found.major}{found.minor}, {found.total_memory / 2**30:.0f} GiB"
    runtime = f"CUDA {torch.version.cuda}" if torch.version.cuda else f"HIP {torch.version.hip}"
    driver = "driver not asked: no nvidia-smi"
    if smi := shutil.which("nvidia-smi"):
        command = [smi, "--query-gpu=driver_version", "--format=csv,noheader"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
        if done.returncode == 0 and (told := done.stdout.strip()):
            driver = f"driver {told.splitlines()[0]}"
    yield Finding(CUDA, OK, f"{found.name}, {sizes}, {runtime}, {driver}")


def _npu() -> Iterator[Finding]:
    yield _cann()
    yield _driver()
    yield from _vllm_ascend()
    # Last: where CANN is not set up it may end the process.
    try:
        import_module("torch_npu")
    except ImportError as error:
        yield Finding("torch_npu", WRONG, f"does not import ({error})", _SET_ENV)
        return
    yield Finding("torch_npu", OK, str(needs.installed_version("torch-npu")))
    yield _chip()


def _vllm_ascend() -> Iterator[Finding]:
    """Its version, and whether its source, not imported, has what this plugin relies on."""
    from vllm_eagle_pangu.compat.ascend_seams import ASCEND_SEAMS

    if not (version := needs.installed_version("vllm-ascend")):
        yield Finding("vllm-ascend", WRONG, "not installed", pip("install", ASCEND_PACKAGE))
        return
    yield Finding("vllm-ascend", OK, version)
    problems = [f"{seam}: {why}" for seam in ASCEND_SEAMS if (why := seam.problem())]
    if problems:
        yield Finding("ascend names", WRONG, f"vllm-ascend lacks {'; '.join(problems)}")
    else:
        text = f"vllm-ascend has all {len(ASCEND_SEAMS)} things that this plugin relies on"
        yield Finding("ascend names", OK, text)


def _chip() -> Finding:
    import torch

    if not (count := torch.npu.device_count()):
        return Finding(NPU, WRONG, "torch_npu sees no NPU: what does npu-smi info say?")
    memory = torch.npu.get_device_properties(0).total_memory / 2**30
    return Finding(NPU, OK, f"{torch.npu.get_device_name(0)}, {memory:.0f} GiB, {count} of them")


def _cann() -> Finding:
    home = os.environ.get("ASCEND_TOOLKIT_HOME") or os.environ.get("ASCEND_HOME_PATH")
    root = Path(home or f"{_TOOLKIT}/latest")
    notes = (
        root / f"{platform.machine()}-linux" / "ascend_toolkit_install.info",
        root / "version.cfg",
        root / "compiler" / "version.info",
    )
    version = next(filter(None, map(_version, notes)), None)
    nnal = "with" if os.environ.get("ATB_HOME_PATH") else "without"
    if version is None:
        return Finding("CANN", WRONG, "not found: its environment is not set", _SET_ENV)
    text = f"{version}, {nnal} the environment of NNAL (ATB)"
    if not version.startswith(CANN_LINE):
        return Finding("CANN", WRONG, f"{text}; vllm-ascend 0.23 is for {CANN_LINE}*")
    if nnal == "without":
        return Finding("CANN", WRONG, text, "source /usr/local/Ascend/nnal/atb/set_env.sh")
    return Finding("CANN", OK, text)


def _driver() -> Finding:
    version = _version(Path("/usr/local/Ascend/driver/version.info"))
    if version is None:
        return Finding("driver", WRONG, "/usr/local/Ascend/driver/version.info is not there")
    return Finding("driver", OK, version)


def _version(file: Path) -> str | None:
    try:
        found = _VERSION.search(file.read_text("utf-8", "replace"))
    except OSError:
        return None
    return found and found[1]
