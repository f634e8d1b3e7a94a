# SPDX-License-Identifier: Apache-2.0
"""One name of vLLM's that we touch, and whether the installed vLLM still has it."""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from configparser import ConfigParser
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pkgutil import resolve_name
from typing import Any

from vllm_eagle_pangu.compat import SUPPORTED
from vllm_eagle_pangu.compat.source_seam import made, set_in


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
            return has(resolve_name(self.owner), self.name)
        except (ImportError, AttributeError):
            return False


def owned(table: str) -> Iterator[tuple[str, str, list[str]]]:
    """The entries of a table in the form of an INI file: section, owner, and the owner's words."""
    parser = ConfigParser(delimiters="=", interpolation=None)
    # Names keep their capitals.
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(table)
    for section in parser.sections():
        yield from ((section, owner, words.split()) for owner, words in parser.items(section))


def has(owner: Any, name: str) -> bool:
    """Whether a module, class or function has this name.

    Of a module or class, what getattr finds; of a class, also what its instances get, assigned or
    annotated in the source; of a function, its parameters and what it sets on what it is given.

    Raises:
        ImportError: a module has neither the name nor a module of that name.
    """
    if hasattr(owner, name):
        return True
    if inspect.ismodule(owner):
        return import_module(f"{owner.__name__}.{name}") is not None
    if inspect.isfunction(owner) and name in inspect.signature(owner).parameters:
        return True
    return name in _made(owner)


@cache
def _made(owner: Any) -> frozenset[str]:
    """Of a class: what its methods, or those it inherits, set on `self`, and what it annotates.

    Of a function: what it sets on anything.
    """
    if not inspect.isclass(owner):
        return frozenset(set_in(_definition(inspect.unwrap(owner)), of_self=False))
    classes = [c for c in inspect.getmro(owner) if c.__module__.split(".")[0] == "vllm"]
    return frozenset(name for c in classes for name in made(_definition(c)))


def _definition(owner: Any) -> ast.stmt:
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
    return definition
