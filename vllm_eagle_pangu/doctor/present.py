# SPDX-License-Identifier: Apache-2.0
"""What the worker takes of each op, and whether it is there: `python -m ... <device>`."""

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from vllm_eagle_pangu.doctor.child import reason, report
from vllm_eagle_pangu.doctor.device import NPU, chosen
from vllm_eagle_pangu.doctor.finding import OK, WRONG, Finding
from vllm_eagle_pangu.doctor.ops import OPS, prepare
from vllm_eagle_pangu.kernels.npu_runtime import OPERATORS

# Where CANN looks for packages of custom ops.
_PACKAGES = "ASCEND_CUSTOM_OPP_PATH"


def present(device: str) -> Iterator[Finding]:
    import torch

    for op in OPS:
        implementation = chosen(op, device)
        try:
            prepare(op, implementation, torch.bfloat16)
        except Exception as error:
            yield Finding(op, WRONG, f"{implementation} is not there: {reason(error)}")
        else:
            yield Finding(op, OK, f"{implementation}, ready to run")
    if device == NPU:
        importlib.import_module("torch_npu")
        yield from operators()
        yield ascendc()


def operators() -> Iterator[Finding]:
    """Each of Ascend's operators that an implementation of ours calls."""
    import torch

    for operator, users in OPERATORS.items():
        namespace, _, name = operator.partition(".")
        used = f"{operator}, for {', '.join(users)}"
        if hasattr(getattr(torch.ops, namespace), name):
            yield Finding(name, OK, used)
        else:
            yield Finding(name, WRONG, f"torch_npu has no {used}")


def ascendc() -> Finding:
    """Our own AscendC ops, as CANN installs them."""
    sources = Path(__file__).parents[1] / "kernels"
    ours = sorted(folder.parent.name for folder in sources.glob("*/ascendc"))
    packages = [Path(each) for each in os.environ.get(_PACKAGES, "").split(":") if each]
    found = {file.stem for p in packages for file in p.glob("op_api/include/**/aclnn_*.h")}
    built = [op for op in ours if f"aclnn_{op}" in found]
    text = f"built, by {_PACKAGES}: {', '.join(built) or 'none'} of {', '.join(ours)}"
    return Finding("AscendC", OK, f"{text}; the worker takes none of them yet")


if __name__ == "__main__":
    report(present(sys.argv[1]))
