# SPDX-License-Identifier: Apache-2.0
"""An op, its implementations, and which one runs."""

import functools
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any, Generic, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")

# What a device runs when nobody chose.
_BY_DEVICE = {"cpu": "cpp", "cuda": "triton"}
# Modules that every op has, unless it names others for them.
_USUAL = {"reference": "reference", "cpp": "cpu_impl", "triton": "triton_impl"}


class Op(Generic[P, R]):
    """An op as its definition tells it, computed by any implementation that equals this one.

    Each is a module of the op's package: `modules`, by name, beside the usual ones. It defines a
    function of the definition's name and parameters, and `prepare` where something must be made
    ready first. Modules are imported when first used: what they need (a compiler, Triton) need not
    be there for the others.
    """

    def __init__(self, definition: Callable[P, R], **modules: str) -> None:
        functools.update_wrapper(self, definition)
        self.name = definition.__name__
        package = definition.__module__.rpartition(".")[0]
        named = _USUAL | modules
        self._modules = {name: f"{package}.{module}" for name, module in named.items()}
        self._functions: dict[str, Callable[P, R]] = {}

    def __call__(self, *args: Any, implementation: str | None = None, **kwargs: Any) -> R:
        """See the definition; None: the implementation for the device of the first tensor.

        Raises:
            ValueError: `implementation` names none of the op's.
            RuntimeError: it cannot run on this machine; the message says why and what to do.
        """
        # What an engine chose is called several times a step: it looks for no device.
        if implementation is not None:
            return self.of(implementation)(*args, **kwargs)
        tensors = (x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor))
        return self.on(next(tensors).device)(*args, **kwargs)

    def on(self, device: torch.device, implementation: str | None = None) -> Callable[P, R]:
        """The function of this implementation; None: of the device's own. Raises as a call does."""
        if implementation is None:
            own = _BY_DEVICE.get(device.type, "reference")
            implementation = own if own in self._modules else "reference"
        return self.of(implementation)

    def of(self, implementation: str) -> Callable[P, R]:
        """The function of this implementation, never of another one. Raises as a call does."""
        if implementation not in self._functions:
            function = getattr(self._module(implementation), self.name)
            self._functions[implementation] = function
        return self._functions[implementation]

    def prepare(self, implementation: str, *args: Any) -> None:
        """Make an implementation ready to run, compiling it where needed: at start-up.

        Raises as a call does.
        """
        prepare = getattr(self._module(implementation), "prepare", None)
        if prepare is not None:
            prepare(*args)

    def _module(self, name: str) -> ModuleType:
        if name not in self._modules:
            raise ValueError(
                f"{self.name}: implementation={name!r} is unknown; use one of "
                + ", ".join(map(repr, self._modules))
            )
        if name == "triton":
            from vllm_eagle_pangu.kernels.triton_runtime import require_triton

            require_triton(self.name)
        return importlib.import_module(self._modules[name])
