# SPDX-License-Identifier: Apache-2.0
"""One name of vLLM's that we touch, and whether the installed vLLM still has it."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
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


def owned(table: str) -> Iterator[tuple[str, list[str]]]:
    """The owners of a table, each with a colon behind it, and the words that follow each.

    A line that begins with # is a comment.
    """
    entries = re.sub(r"^ *#.*$", "", table, flags=re.M)
    for owner, words in re.findall(r"(\S+):\s(.*?)(?=\S+:\s|\Z)", entries, re.S):
        yield owner, words.split()


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
