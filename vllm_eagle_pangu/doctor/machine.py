# SPDX-License-Identifier: Apache-2.0
"""The machine in a line, and the compiler that the C++ ops need."""

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

from vllm_eagle_pangu.doctor.finding import OK, WRONG, Finding
from vllm_eagle_pangu.serving import needs

# As /proc/cpuinfo spells what decides which attention and GEMM run.
_ISA = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "bf16", "sve")


def machine() -> Finding:
    cpus = f"{needs.cores()} of {os.cpu_count()} cores"
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        return Finding("machine", OK, f"{platform.machine()}, {cpus}")
    flags = set(" ".join(re.findall(r"^(?:flags|Features)\s*:(.*)$", text, re.M)).split())
    isa = [name for name in _ISA if name in flags]
    if platform.machine() == "x86_64" and "amx_bf16" not in flags:
        isa.append("no amx")
    model = re.search(r"^model name\s*:\s*(.*)$", text, re.M)
    name = f" ({model[1]})" if model else ""
    return Finding("machine", OK, f"{platform.machine()}{name}, {cpus}, {', '.join(isa)}")


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


CHECKS = (machine, compiler)
