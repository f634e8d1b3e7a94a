# SPDX-License-Identifier: Apache-2.0
"""Ascend's operators as our code calls them: recorded, or with one argument changed."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


@dataclass
class Call:
    """`arguments` by name, those that are not the schema's defaults; `results` as a list."""

    operator: torch._ops.OpOverload
    arguments: dict[str, Any]
    results: list[torch.Tensor]

    @property
    def name(self) -> str:
        """With the layout, where one operator has two tasks."""
        layout = self.arguments.get("input_layout")
        return self.operator.name().split("::")[1] + (f" {layout}" if layout else "")


@dataclass
class Calls(TorchDispatchMode):
    """`with Calls() as calls`: all calls of `npu::` and `atb::` in `calls.made`.

    `change(call)` alters a call's arguments before it is made.
    """

    change: Callable[[Call], None] = lambda call: None
    made: list[Call] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.name().startswith(("npu::", "atb::")):
            return func(*args, **kwargs or {})
        names = [argument.name for argument in func._schema.arguments]
        call = Call(func, dict(zip(names, args, strict=False)) | (kwargs or {}), [])
        self.change(call)
        results = func(**call.arguments)
        call.results = list(results) if isinstance(results, tuple) else []
        self.made.append(call)
        return results
