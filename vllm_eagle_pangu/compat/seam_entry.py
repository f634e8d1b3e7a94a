# SPDX-License-Identifier: Apache-2.0
"""One name of vLLM's that we touch, and whether the installed vLLM still has it."""

import ast
import inspect
import textwrap
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Literal

from vllm_eagle_pangu.compat import SUPPORTED

# NAME: what getattr finds on a module or class. MADE: an attribute that an instance gets, assigned
# or annotated in the source of its classes, or that a function sets on what it is given.
# FIELD: of a dataclass or named tuple. PARAMETER: of a function, or of a class's constructor.
Kind = Literal["NAME", "MADE", "FIELD", "PARAMETER"]

# How modules of torch get attributes beside assignment.
_REGISTER = ("register_buffer", "register_parameter", "setattr")


@dataclass(frozen=True)
class Seam:
    """A name of vLLM's that a file of ours relies on.

    `owner`: "module", or "module:Class", or "module:function".
    `lines`: the lines of vLLM that have it.
    `platform`: vLLM's device type where only one needs it, else None. The source is one for all.
    """

    owner: str
    name: str
    kind: Kind
    lines: tuple[str, ...] = SUPPORTED
    platform: str | None = None

    def __str__(self) -> str:
        """`vllm.v1.sample.sampler.Sampler.forward`."""
        return ".".join(part for part in (*self.owner.split(":"), self.name) if part)

    def exists(self) -> bool:
        """Whether the installed vLLM has it; a missing module or class counts as missing."""
        try:
            return has(found(self.owner), self.name, self.kind)
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


def has(owner: Any, name: str, kind: Kind) -> bool:
    """Whether a module, class or function has this name in the way of `kind`."""
    if kind == "NAME":
        return hasattr(owner, name) or (
            inspect.ismodule(owner) and _module_found(f"{owner.__name__}.{name}")
        )
    if kind == "MADE":
        return name in _made(owner)
    if kind == "FIELD":
        return name in getattr(owner, "__dataclass_fields__", getattr(owner, "_fields", ()))
    return name in inspect.signature(owner).parameters


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
