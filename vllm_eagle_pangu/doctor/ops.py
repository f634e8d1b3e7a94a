# SPDX-License-Identifier: Apache-2.0
"""Each op on a small case of its own, against its reference: `python -m ... <op> <op> ...`."""

import sys
from importlib import import_module

from vllm_eagle_pangu.doctor.agreement import assert_agrees, cases_of
from vllm_eagle_pangu.doctor.child import reason, report
from vllm_eagle_pangu.doctor.device import CPU, CUDA, chosen, device_type
from vllm_eagle_pangu.doctor.finding import OK, WRONG, Finding

# Each op, and which of its cases is run.
OPS = {
    "draft_batch": "mixed",
    "kv_commit": "cpu_preset",
    "top_children": "odd",
    "tree_accept": "cpu_preset",
    "tree_attention": "ragged",
    "tree_build": "cpu_preset",
    "tree_expand": "second_level",
    "tree_prune": "cpu_preset",
}


def check(op: str) -> Finding:
    """Prepare the implementation that a server here would run, run it, compare."""
    implementation = "it"
    try:
        device = _device()
        implementation = chosen(op, device)
        (case,) = (case for case in cases_of(op, implementation) if case.name == OPS[op])
        prepare(op, implementation, getattr(case, "dtype", None))
        assert_agrees(op, implementation, case, device)
    except AssertionError as error:
        return Finding(op, WRONG, f"{implementation} differs from the reference: {reason(error)}")
    except Exception as error:
        return Finding(op, WRONG, f"{implementation} does not run: {reason(error)}")
    return Finding(op, OK, f"{implementation} runs here and agrees with the reference")


def _device() -> str:
    import torch

    device = device_type()
    return CPU if device == CUDA and not torch.cuda.is_available() else device


def prepare(op: str, implementation: str, dtype: object) -> None:
    """Compile it. `dtype`: of attention's queries, keys and values.

    Raises RuntimeError where it cannot run here.
    """
    face = import_module(f"vllm_eagle_pangu.kernels.{op}")
    face.prepare(implementation, *([dtype] if op == "tree_attention" else []))


if __name__ == "__main__":
    report(check(op) for op in sys.argv[1:])
