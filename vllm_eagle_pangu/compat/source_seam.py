# SPDX-License-Identifier: Apache-2.0
"""One name of a package that we touch, looked up in its source: importing it may need a device."""

import ast
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

# NAME: defined or imported in a module, or defined in a class's body. MADE: assigned to `self` in a
# class, or annotated in its body. TAKES: a function whose first parameters are these, in this
# order, `self` apart. GIVES: one whose results are tuples of this many. USES: one in whose source
# this word stands, as a name, an attribute, a keyword or a string.
Kind = Literal["NAME", "MADE", "TAKES", "GIVES", "USES"]

# How modules of torch get attributes beside assignment.
_REGISTER = ("register_buffer", "register_parameter", "setattr")

_Scope = ast.Module | ast.ClassDef
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class SourceSeam:
    """What a file of ours relies on.

    `owner`: "module", "module:Class", "module:function" or "module:Class.method". `relied_on`: a
    name or a word; of TAKES, names apart by blanks; of GIVES, a number.
    """

    owner: str
    relied_on: str
    kind: Kind

    def __str__(self) -> str:
        """`vllm_ascend.worker.worker.NPUWorker.init_device USES NPUModelRunner`."""
        if self.kind in ("NAME", "MADE"):
            return f"{self.owner.replace(':', '.')}.{self.relied_on}"
        return f"{self.owner.replace(':', '.')} {self.kind} {self.relied_on}"

    def problem(self) -> str | None:
        """What the installed package has instead; None where it is as relied on."""
        module, _, path = self.owner.partition(":")
        tree = _source(module)
        if tree is None:
            return f"there is no module {module}"
        node: ast.AST = tree
        for name in path.split(".") if path else ():
            inner = _defined(node).get(name) if isinstance(node, _Scope) else None
            if inner is None:
                return f"{module} defines no {path}"
            node = inner
        if isinstance(node, _Scope):
            names = _defined(node) if self.kind == "NAME" else made(node)
            return None if self.relied_on in names else f"{self.relied_on} is gone"
        if not isinstance(node, _Function):
            return f"{path} is defined elsewhere"
        return _problem_of_function(node, self)


def _problem_of_function(function: _Function, seam: SourceSeam) -> str | None:
    if seam.kind == "TAKES":
        has = [arg.arg for arg in (*function.args.posonlyargs, *function.args.args)]
        has = has[1:] if has[:1] in (["self"], ["cls"]) else has
        wanted = seam.relied_on.split()
        for place, name in enumerate(wanted):
            if has[place : place + 1] != [name]:
                return f"parameter {place + 1} is {(has[place:] or ['gone'])[0]}, not {name}"
        return None
    if seam.kind == "GIVES":
        returned = [node.value for node in _shallow(function) if isinstance(node, ast.Return)]
        counts = {len(value.elts) for value in returned if isinstance(value, ast.Tuple)}
        return None if counts == {int(seam.relied_on)} else f"it returns {sorted(counts)} values"
    return None if seam.relied_on in _words(function) else f"nothing of {seam.relied_on} in it"


def _folder(package: str) -> Path | None:
    """Where an installed package lies; it is not imported."""
    spec = importlib.util.find_spec(package)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


@cache
def _source(module: str) -> ast.Module | None:
    top, *path = module.split(".")
    folder = _folder(top)
    if folder is None:
        return None
    file = folder.joinpath(*path)
    file = file / "__init__.py" if file.is_dir() else file.with_suffix(".py")
    return ast.parse(file.read_text()) if file.exists() else None


def _defined(scope: ast.AST) -> dict[str, ast.AST]:
    """By name, what a module or a class defines: in branches, too, but in no inner scope."""
    found: dict[str, ast.AST] = {}
    for node in _shallow(scope):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            found[node.name] = node
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {alias.asname or alias.name: node for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found[node.id] = node
    return found


def _shallow(scope: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(scope):
        yield node
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield from _shallow(node)


def made(scope: ast.AST) -> set[str]:
    """What a class sets on `self`, and what its body assigns or annotates."""
    own = {name for name, node in _defined(scope).items() if isinstance(node, ast.Name)}
    return own | set_in(scope, of_self=True)


def set_in(definition: ast.AST, of_self: bool) -> set[str]:
    """The attributes that it sets: on `self`, or on anything."""
    names = set()
    for node in ast.walk(definition):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if not of_self or (isinstance(node.value, ast.Name) and node.value.id == "self"):
                names.add(node.attr)
        elif isinstance(node, ast.Call):
            function = node.func
            if getattr(function, "attr", getattr(function, "id", "")) in _REGISTER:
                values = {arg.value for arg in node.args if isinstance(arg, ast.Constant)}
                names |= {value for value in values if isinstance(value, str)}
    return names


def _words(function: ast.AST) -> set[str]:
    parts = ("id", "attr", "arg", "value")
    words = {getattr(node, part, None) for node in ast.walk(function) for part in parts}
    return {word for word in words if isinstance(word, str)}
