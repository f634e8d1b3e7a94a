# SPDX-License-Identifier: Apache-2.0
"""Each op on a small case of its own, against its reference: `python -m ... <op> <op> ...`."""

import copy
import dataclasses
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from vllm_eagle_pangu.doctor.child import reason, report
from vllm_eagle_pangu.doctor.finding import OK, WRONG, Finding
from vllm_eagle_pangu.env import forced_eager_attention
from vllm_eagle_pangu.serving import needs

# Folder of the op, its function, and which of its cases is run.
OPS = {
    "draft_batch": ("draft_batch", "mixed"),
    "kv_commit": ("commit_slots", "cpu_preset"),
    "top_children": ("top_children", "odd"),
    "tree_accept": ("tree_accept", "cpu_preset"),
    "tree_attention": ("tree_attention", "ragged"),
    "tree_build": ("tree_build", "cpu_preset"),
    "tree_expand": ("tree_expand", "second_level"),
}


def check(op: str) -> Finding:
    """Prepare the implementation that a server here would run, run it, compare."""
    function, name = OPS[op]
    implementation = "it"
    try:
        device, implementation = chosen(op)
        face = import_module(f"vllm_eagle_pangu.kernels.{op}")
        cases = import_module(f"vllm_eagle_pangu.kernels.{op}.cases")
        (case,) = (each for each in cases.CASES if each.name == name)
        face.prepare(implementation, *([case.dtype] if op == "tree_attention" else []))
        inputs = cases.make_inputs(case, device=device)
        compare = _COMPARISONS.get(op, _same)
        compare(getattr(face, function), inputs, implementation)
    except AssertionError as error:
        return Finding(op, WRONG, f"{implementation} differs from the reference: {reason(error)}")
    except Exception as error:
        return Finding(op, WRONG, f"{implementation} does not run: {reason(error)}")
    return Finding(op, OK, f"{implementation} runs here and agrees with the reference")


def chosen(op: str) -> tuple[str, str]:
    """The device that vLLM will take, and the implementation that our worker runs there."""
    import torch

    on_cpu = needs.runs_on_cpu() or not torch.cuda.is_available()
    device, implementation = ("cpu", "cpp") if on_cpu else ("cuda", "triton")
    if op == "tree_attention" and forced_eager_attention():
        implementation = "reference"
    return device, implementation


def _same(op: Callable[..., Any], inputs: dict[str, Any], implementation: str) -> None:
    """Integers and copies: exact, in the result and in what was written to the inputs."""
    expected_inputs = copy.deepcopy(inputs)
    expected = op(**expected_inputs, implementation="reference")
    _assert_close(op(**inputs, implementation=implementation), expected, 0.0)
    _assert_close(inputs, expected_inputs, 0.0)


def _top_children(op: Callable[..., Any], inputs: dict[str, Any], implementation: str) -> None:
    from vllm_eagle_pangu.kernels.top_children.cases import TOLERANCE

    expected = op(**inputs, implementation="reference")
    _assert_close(op(**inputs, implementation=implementation), expected, TOLERANCE)


def _attention(op: Callable[..., Any], inputs: dict[str, Any], implementation: str) -> None:
    from vllm_eagle_pangu.kernels.tree_attention.comparison import assert_as_exact_as_torch

    assert_as_exact_as_torch(
        lambda **given: op(**given, implementation=implementation, check=True), inputs
    )


_COMPARISONS = {"top_children": _top_children, "tree_attention": _attention}


def _assert_close(got: Any, expected: Any, tolerance: float) -> None:
    import torch

    for mine, theirs in zip(_leaves(got), _leaves(expected), strict=True):
        if isinstance(theirs, torch.Tensor):
            torch.testing.assert_close(mine, theirs, rtol=0.0, atol=tolerance, equal_nan=True)
        else:
            assert mine == theirs, (mine, theirs)


def _leaves(value: Any) -> Iterator[Any]:
    """Tensors and numbers of nested dataclasses, dictionaries and tuples, in order."""
    if dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, tuple):
        for part in value:
            yield from _leaves(part)
    else:
        yield value


if __name__ == "__main__":
    report(check(op) for op in sys.argv[1:])
