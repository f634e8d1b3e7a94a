# SPDX-License-Identifier: Apache-2.0
"""Each op's implementations on a device: whether they are there, and agree with the reference.

Inputs are made twice, on the device and on the host; integers and copies must be equal, in the
result and in what is written to the inputs.
"""

import dataclasses
import os
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from vllm_eagle_pangu.doctor.device import COMMIT, CPU, CUDA, NPU, ROUTES, chosen, device_type
from vllm_eagle_pangu.doctor.finding import OK, WRONG, Finding, reason

# Each op, and which of its cases is run where only one is.
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
# kv_commit's second function; its first is not named as their folder.
PAGES = "commit_pages"
_FOLDERS = {PAGES: "kv_commit"}
_FUNCTIONS = {"kv_commit": "commit_slots"}
# Where CANN looks for packages of custom ops.
_PACKAGES = "ASCEND_CUSTOM_OPP_PATH"


# ---- whether they are there ----


def present(device: str) -> Iterator[Finding]:
    """What the worker takes of each op, made ready; Ascend's operators by name."""
    import torch

    for op in OPS:
        implementation = chosen(op, device)
        try:
            if op == "tree_attention":
                _face(op).prepare(implementation, torch.bfloat16)
            else:
                _function(op).prepare(implementation)
        except Exception as error:
            yield Finding(op, WRONG, f"{implementation} is not there: {reason(error)}")
        else:
            yield Finding(op, OK, f"{implementation}, ready to run")
    if device == NPU:
        import_module("torch_npu")
        yield from operators()
        yield ascendc()


def operators() -> Iterator[Finding]:
    """Each of Ascend's operators that an implementation of ours calls."""
    import torch

    from vllm_eagle_pangu.kernels.npu_runtime import OPERATORS

    for operator, users in OPERATORS.items():
        namespace, _, name = operator.partition(".")
        used = f"{operator}, for {', '.join(users)}"
        there = hasattr(getattr(torch.ops, namespace), name)
        yield Finding(name, OK, used) if there else Finding(name, WRONG, f"torch_npu has no {used}")


def ascendc() -> Finding:
    """Our own AscendC ops, as CANN installs them."""
    sources = Path(__file__).parents[1] / "kernels"
    ours = sorted(folder.parent.name for folder in sources.glob("*/ascendc"))
    packages = [Path(each) for each in os.environ.get(_PACKAGES, "").split(":") if each]
    found = {file.stem for p in packages for file in p.glob("op_api/include/**/aclnn_*.h")}
    built = [op for op in ours if f"aclnn_{op}" in found]
    text = f"built, by {_PACKAGES}: {', '.join(built) or 'none'} of {', '.join(ours)}"
    return Finding("AscendC", OK, f"{text}; the worker takes none of them yet")


# ---- whether they agree ----


def on_one_case(*ops: str) -> Iterator[Finding]:
    """What a server here would run of each op, on a small case."""
    import torch

    device = device_type()
    device = CPU if device == CUDA and not torch.cuda.is_available() else device
    for op in ops:
        implementation = chosen(op, device)
        (case,) = (case for case in _cases(op, implementation) if case.name == OPS[op])
        wrong = _failing(op, implementation, device, [case]).get(case.name)
        text = wrong or "runs here and agrees with the reference"
        yield Finding(op, WRONG if wrong else OK, f"{implementation} {text}")


def names(device: str) -> list[str]:
    """Ops and implementations that there are, the worker's and others: "tree_attention cpp"."""
    ops = [f"{op} {chosen(op, device)}" for op in OPS if op != "tree_attention"]
    routes = [f"tree_attention {route}" for route in ROUTES[device]]
    return [*ops, f"{PAGES} {COMMIT[device]}", *routes]


def on_all_cases(device: str, *named: str) -> Iterator[Finding]:
    """Each of these `names`, on every small case that it is made for."""
    for name in named:
        op, _, implementation = name.partition(" ")
        cases = _cases(op, implementation)
        failing = _failing(op, implementation, device, cases)
        if not failing:
            yield Finding(name, OK, f"{len(cases)} cases agree with the reference")
            continue
        many = f"{len(failing)} of {len(cases)} cases fail ({', '.join(failing)})"
        yield Finding(name, WRONG, f"{many}; {next(iter(failing))} {next(iter(failing.values()))}")
        if device != CPU:
            # A fault of a device stays in its process: the rest gets another.
            return


def _cases(op: str, implementation: str) -> Sequence[Any]:
    """The cases that an implementation is made for."""
    if op == PAGES:
        made = _module(op)
        return [case for case in made.PAGES_CASES if made.writes(implementation, case)]
    if op == "tree_attention" and implementation.startswith("npu"):
        return _module(op).NPU_CASES
    return _module(op).CASES


def _failing(op: str, implementation: str, device: str, cases: Sequence[Any]) -> dict[str, str]:
    """By the name of a case that fails, how."""
    failing = {}
    for case in cases:
        try:
            if op == "tree_attention":
                _compare_attention(implementation, case, device)
            else:
                _compare(op, implementation, case, device)
        except AssertionError as error:
            failing[case.name] = f"differs from the reference: {reason(error)}"
        except Exception as error:
            failing[case.name] = f"does not run: {reason(error)}"
    return failing


def _compare(op: str, implementation: str, case: Any, device: str) -> None:
    """Raises AssertionError where they differ."""
    function, cases = _function(op), _module(op)
    make_inputs = cases.make_page_inputs if op == PAGES else cases.make_inputs
    inputs, expected_inputs = make_inputs(case, device=device), make_inputs(case)
    expected = function(**expected_inputs, implementation="reference")
    got = function(**inputs, implementation=implementation)
    _assert_close(got, expected, getattr(cases, "TOLERANCE", 0.0))
    if op == PAGES:
        # Layers know their addresses, too.
        inputs, expected_inputs = inputs["layers"].pages, expected_inputs["layers"].pages
    _assert_close(inputs, expected_inputs)


def _compare_attention(implementation: str, case: Any, device: str) -> None:
    """As `_compare`, to at most twice plain torch's distance on the host, in the same dtype, from
    float64 there."""
    from vllm_eagle_pangu.kernels.tree_attention import npu_limits, tree_attention
    from vllm_eagle_pangu.kernels.tree_attention.comparison import assert_as_exact_as_torch

    make_inputs = _module("tree_attention").make_inputs

    def attend(**on_host: Any) -> None:
        there = make_inputs(case, device=device)
        tree_attention(**there, implementation=implementation, check=True)
        on_host["output"].copy_(there["output"])

    # These round each of two parts before they are merged.
    roundings = 1 if implementation in (npu_limits.NPU, npu_limits.TORCH_TREE) else 0
    assert_as_exact_as_torch(attend, make_inputs(case), roundings)


def _face(op: str) -> Any:
    return import_module(f"vllm_eagle_pangu.kernels.{_FOLDERS.get(op, op)}")


def _function(op: str) -> Any:
    return getattr(_face(op), _FUNCTIONS.get(op, op))


def _module(op: str) -> Any:
    return import_module(f"{_face(op).__name__}.cases")


def _assert_close(got: Any, expected: Any, tolerance: float = 0.0) -> None:
    import torch

    exact = {"rtol": 0.0, "atol": tolerance, "equal_nan": True, "check_device": False}
    torch.testing.assert_close(list(leaves(got)), list(leaves(expected)), **exact)


def leaves(value: Any) -> Iterator[Any]:
    """Tensors and numbers of nested dataclasses, dictionaries and sequences, in order."""
    if dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, list | tuple):
        for part in value:
            yield from leaves(part)
    else:
        yield value
