# SPDX-License-Identifier: Apache-2.0
"""One name of vLLM's that we touch, and whether the installed vLLM still has it."""

import ast
import inspect
import textwrap
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from vllm_eagle_pangu.compat import SUPPORTED

# How modules of torch get attributes beside assignment.
_REGISTER = ("register_buffer", "register_parameter", "setattr")


@dataclass(frozen=True)
class Seam:
    """A name of vLLM's that a file of ours relies on.

    `owner`: "module", or "module:Class", or "module:function", or "module:Class.method".
    `lines`: the lines of vLLM that have it.
    `platform`: vLLM's device type where only one needs it, else None. The source is one for all.
    """

    owner: str
    name: str
    lines: tuple[str, ...] = SUPPORTED
    platform: str | None = None

    def __str__(self) -> str:
        """`vllm.v1.sample.sampler.Sampler.forward`."""
        return ".".join(part for part in (*self.owner.split(":"), self.name) if part)

    def exists(self) -> bool:
        """Whether the installed vLLM has it; a missing module or class counts as missing."""
        try:
            return has(found(self.owner), self.name)
        except (ImportError, AttributeError):
            return False


def found(owner: str) -> Any:
    """The module, class or function that `owner` names. Imports it.

    Raises:
        ImportError, AttributeError: it is not there.
    """
    module, _, path = owner.partition(":")
    value: Any = import_module(module)
    for name in path.split(".") if path else ():
        value = getattr(value, name)
    return value


def _module_found(name: str) -> bool:
    try:
        return import_module(name) is not None
    except ImportError:
        return False


def has(owner: Any, name: str) -> bool:
    """Whether a module, class or function has this name.

    Of a module or class, what getattr finds; of a class, also what its instances get, assigned or
    annotated in the source; of a function, its parameters and what it sets on what it is given.
    """
    if hasattr(owner, name):
        return True
    if inspect.ismodule(owner):
        return _module_found(f"{owner.__name__}.{name}")
    if inspect.isfunction(owner) and name in inspect.signature(owner).parameters:
        return True
    return name in _made(owner)


@cache
def _made(owner: Any) -> frozenset[str]:
    """Of a class: what its methods, or those it inherits, set on `self`, and what it annotates.

    Of a function: what it sets on anything.
    """
    if not inspect.isclass(owner):
        return frozenset(_set_in(inspect.unwrap(owner), of_self=False))
    classes = [c for c in inspect.getmro(owner) if c.__module__.split(".")[0] == "vllm"]
    return frozenset(name for c in classes for name in _set_in(c, of_self=True))


def _set_in(owner: Any, of_self: bool) -> set[str]:
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
    names = set()
    for node in getattr(definition, "body", ()):
        if of_self and isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    for node in ast.walk(definition):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if not of_self or (isinstance(node.value, ast.Name) and node.value.id == "self"):
                names.add(node.attr)
        elif isinstance(node, ast.Call):
            function = node.func
            called = getattr(function, "attr", getattr(function, "id", ""))
            if called in _REGISTER:
                names |= {
                    arg.value
                    for arg in node.args
                    if isinstance(arg, ast.Constant) and isinstance(arg.value, str)
                }
    return names
