# SPDX-License-Identifier: Apache-2.0
"""Which implementations an op has, and which one runs."""

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

# What a device runs when nobody chose.
_BY_DEVICE = {"cpu": "cpp", "cuda": "triton"}
# The modules of most ops.
_USUAL = {"reference": "reference", "cpp": "cpu_impl", "triton": "triton_impl"}


class Implementations:
    """The implementations of one op, each a module of the op's package: `modules`, by name.

    A module defines a function of the op's name, with the face's arguments but for
    `implementation`, and `prepare` where something must be made ready first. Modules are imported
    when first used: what they need (a compiler, Triton) need not be there for the others.
    """

    def __init__(self, package: str, op: str, **modules: str) -> None:
        self.op = op
        modules = modules or _USUAL
        self._modules = {name: f"{package}.{module}" for name, module in modules.items()}
        self._functions: dict[str, Callable[..., Any]] = {}

    def of(self, name: str | None, device: torch.device | None = None) -> Callable[..., Any]:
        """The function of implementation `name`; None: the one for `device`. Never another one.

        Raises:
            ValueError: there is no implementation `name`.
        """
        if name is None:
            assert device is not None
            name = _BY_DEVICE.get(device.type, "reference")
            name = name if name in self._modules else "reference"
        if name not in self._functions:
            self._functions[name] = getattr(self._module(name), self.op)
        return self._functions[name]

    def prepare(self, name: str, *args: Any) -> None:
        """Make an implementation ready to run, compiling it where needed: at start-up.

        Raises:
            ValueError: there is no implementation `name`.
            RuntimeError: it cannot run on this machine; the message says why and what to do.
        """
        prepare = getattr(self._module(name), "prepare", None)
        if prepare is not None:
            prepare(*args)

    def _module(self, name: str) -> ModuleType:
        if name not in self._modules:
            raise ValueError(
                f"{self.op}: implementation={name!r} is unknown; use one of "
                + ", ".join(map(repr, self._modules))
            )
        if name == "triton":
            from vllm_eagle_pangu.kernels.triton_runtime import require_triton

            require_triton(self.op)
        return importlib.import_module(self._modules[name])
