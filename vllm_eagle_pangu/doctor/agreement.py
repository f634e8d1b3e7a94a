# SPDX-License-Identifier: Apache-2.0
"""An op's implementation on a device against its reference on the host, case by case.

Inputs are made twice, on either; integers and copies must be equal, in the result and in what is
written to the inputs.
"""

import dataclasses
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

# Functions that are not named as their op's folder.
_FUNCTIONS = {"kv_commit": "commit_slots"}
# An op's second function, by the name that it goes under here.
PAGES = "commit_pages"
_HALF = ("torch.float16", "torch.bfloat16")
# What an NPU copies in whole.
_BLOCK_ELEMENTS = 16


def cases_of(op: str, implementation: str) -> tuple[Any, ...]:
    """The cases that an implementation is made for."""
    on_npu = implementation.startswith("npu")
    if op == PAGES:
        cases = _module("kv_commit").PAGES_CASES
        return tuple(case for case in cases if not on_npu or _npu_writes(case))
    if op == "tree_attention" and on_npu:
        return import_module("vllm_eagle_pangu.kernels.tree_attention.npu_cases").NPU_CASES
    return _module(op).CASES


def _npu_writes(case: Any) -> bool:
    plain = case.layout == "NHD" and not case.scaled and case.head_size % _BLOCK_ELEMENTS == 0
    return plain and str(case.page_dtype) in _HALF


def assert_agrees(op: str, implementation: str, case: Any, device: str) -> None:
    """Raises AssertionError where they differ, and whatever running it raises."""
    _COMPARISONS.get(op, _same)(op, implementation, case, device)


def _same(op: str, implementation: str, case: Any, device: str, tolerance: float = 0.0) -> None:
    function, make = _function(op), _module(op).make_inputs
    inputs, expected_inputs = make(case, device=device), make(case)
    expected = function(**expected_inputs, implementation="reference")
    _assert_close(function(**inputs, implementation=implementation), expected, tolerance)
    _assert_close(inputs, expected_inputs, 0.0)


def _within_tolerance(op: str, implementation: str, case: Any, device: str) -> None:
    _same(op, implementation, case, device, _module(op).TOLERANCE)


def _pages(op: str, implementation: str, case: Any, device: str) -> None:
    cases = _module("kv_commit")
    inputs, expected = (cases.make_page_inputs(case, device=where) for where in (device, "cpu"))
    commit_pages = import_module("vllm_eagle_pangu.kernels.kv_commit").commit_pages
    commit_pages(**inputs, implementation=implementation)
    commit_pages(**expected, implementation="reference")
    _assert_close(_written(inputs), _written(expected), 0.0)


def _written(inputs: dict[str, Any]) -> tuple[Any, ...]:
    """As bytes: not every dtype of pages has an equality."""
    import torch

    sides = (side for pages in inputs["layers"].pages for side in (pages.key, pages.value))
    return tuple(side.cpu().contiguous().view(torch.uint8) for side in sides)


def _attention(op: str, implementation: str, case: Any, device: str) -> None:
    """At most twice as far from float64 on the host as plain torch there in the same dtype."""
    from vllm_eagle_pangu.kernels.tree_attention.comparison import assert_as_exact_as_torch
    from vllm_eagle_pangu.kernels.tree_attention.npu_limits import NPU, TORCH_TREE

    function, make = _function(op), _module(op).make_inputs
    if implementation.startswith("npu"):
        make = import_module("vllm_eagle_pangu.kernels.tree_attention.npu_cases").npu_inputs

    def attend(**on_host: Any) -> None:
        there = make(case, device=device)
        function(**there, implementation=implementation, check=True)
        on_host["output"].copy_(there["output"])

    # These round each of two parts before they are merged.
    roundings = 1 if implementation in (NPU, TORCH_TREE) else 0
    assert_as_exact_as_torch(attend, make(case), roundings)


_COMPARISONS: dict[str, Callable[[str, str, Any, str], None]] = {
    "top_children": _within_tolerance,
    "tree_prune": _within_tolerance,
    "tree_attention": _attention,
    PAGES: _pages,
}


def _module(op: str) -> Any:
    return import_module(f"vllm_eagle_pangu.kernels.{op}.cases")


def _function(op: str) -> Callable[..., Any]:
    return getattr(import_module(f"vllm_eagle_pangu.kernels.{op}"), _FUNCTIONS.get(op, op))


def _assert_close(got: Any, expected: Any, tolerance: float) -> None:
    import torch

    for mine, theirs in zip(_leaves(got), _leaves(expected), strict=True):
        if isinstance(theirs, torch.Tensor):
            torch.testing.assert_close(mine.cpu(), theirs, rtol=0.0, atol=tolerance, equal_nan=True)
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
