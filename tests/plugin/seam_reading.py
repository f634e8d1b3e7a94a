# SPDX-License-Identifier: Apache-2.0
"""What our files touch of vLLM, read off their source.

Followed from: names imported from vLLM; `self` in classes of ours that derive from vLLM's; and
parameters that are annotated with a class of vLLM's, with one of ours that derives from it, or not
at all (`Any`), which is how objects of vLLM come in. From these through attributes, subscripts,
calls, loops and local variables, each attribute, each string given to getattr or hasattr, and each
keyword given to vLLM's callables.

Not seen, or not told apart:
- Attributes of what passed through a function, a dataclass or an attribute of our own.
- Whose attribute it is, off `self` and imports: a name counts as in the table if the table has it,
  whichever class it is of.
- Behind the first attribute, names that tensors, arrays and Python's containers have too.
- Names that our own classes give to vLLM's objects; `hf_config`, which is transformers'.
- How often, with what positional arguments, and what for. test_seams.py holds signatures.
"""

import ast
import inspect
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TypeGuard

import numpy as np
import torch

import vllm_eagle_pangu
from vllm_eagle_pangu.compat.seam_entry import has

PACKAGE = Path(vllm_eagle_pangu.__file__).parent
FILES = sorted(
    str(file.relative_to(PACKAGE))
    for part in ("engine", "compat", "models")
    for file in (PACKAGE / part).glob("*.py")
    if file.name not in ("seams.py", "seam_entry.py")
)

# Parameters without a class in their annotation that are no objects of vLLM's.
OTHERS = {
    "compat/engine_args.py": {"merged"},
    "engine/head_fit.py": {"eagle_config"},
    "engine/refusals.py": {"host_spec", "value"},
    "models/pangu_as_llama.py": {"config"},
}
# What we hang on vLLM's objects: a mark on what is patched, a step's trees on attention metadata.
OURS = {"eagle_pangu", "tree"}
# Attributes behind which lies what is transformers'.
ENDS = {"hf_config", "hf_text_config", "config"}
# Functions whose result is, or holds, what they are given.
HANDING_ON = {"copy", "dict", "enumerate", "getattr", "list", "sorted", "zip"}
EVERYBODYS = {
    name
    for kind in (torch.Tensor, torch.dtype, np.ndarray, dict, list, tuple, set, str, int, property)
    for name in dir(kind)
}


def module_of(file: str) -> str:
    return f"vllm_eagle_pangu.{file.removesuffix('.py').replace('/', '.')}"


@cache
def tree_of(file: str) -> ast.Module:
    return ast.parse((PACKAGE / file).read_text())


def imports(file: str) -> dict[str, str]:
    """By the name it has here, what a file imports from vLLM: "module:name", or "module"."""
    given = {}
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "vllm":
            for alias in node.names:
                given[alias.asname or alias.name] = f"{node.module}:{alias.name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "vllm":
                    given[alias.asname or "vllm"] = alias.name
    return given


@cache
def modules() -> dict[str, ModuleType | str]:
    """Our files' modules, or why one cannot be imported: a name that it imports is gone."""
    found: dict[str, ModuleType | str] = {}
    for file in FILES:
        try:
            found[file] = import_module(module_of(file))
        except (ImportError, AttributeError) as error:
            found[file] = f"{file} cannot be imported: {error}"
    return found


@cache
def adapters() -> dict[type, tuple[type, ...]]:
    """Our classes with a class of vLLM's behind them: for a mixin, behind those that mix it in."""
    every = [x for module in modules().values() for x in getattr(module, "__dict__", {}).values()]
    ours = [c for c in every if inspect.isclass(c) and is_ours(c)]
    behind = {
        c: tuple({v: 0 for d in ours if c in d.__mro__ for v in d.__mro__ if not is_ours(v)})
        for c in ours
    }
    vllm_s = {c: tuple(v for v in classes if is_vllms(v)) for c, classes in behind.items()}
    return {c: classes for c, classes in vllm_s.items() if classes}


def is_ours(c: type) -> bool:
    return c.__module__.split(".")[0] == "vllm_eagle_pangu"


def is_vllms(c: type) -> bool:
    return c.__module__.split(".")[0] == "vllm"


def vllm_has(classes: Iterable[type], name: str) -> bool:
    return any(has(c, name) for c in classes)


@cache
def defined(c: type) -> frozenset[str]:
    """What a class of ours defines: its body's names and what its methods set on `self`."""
    (definition,) = ast.parse(inspect.getsource(c)).body
    assert isinstance(definition, ast.ClassDef)
    names: set[str] = set()
    for node in definition.body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            names |= _bound(node)
    for node in ast.walk(definition):
        if _is_stored(node) and _is_self(node.value):
            names.add(node.attr)
    return frozenset(name for name in names if not name.startswith("__"))


@cache
def our_names() -> frozenset[str]:
    """What our classes add to vLLM's."""
    return OURS | {
        name
        for c, behind in adapters().items()
        for name in defined(c)
        if not vllm_has(behind, name)
    }


def touched(file: str) -> dict[str, int]:
    """Names of vLLM's that a file touches beside its imports, each with a line number."""
    reader = _Reader(file)
    # Twice: what a later line finds may be used by an earlier one.
    reader.visit(tree_of(file))
    reader.visit(tree_of(file))
    return reader.names


class _Reader(ast.NodeVisitor):
    def __init__(self, file: str) -> None:
        self.file = file
        self.imported = set(imports(file))
        self.followed: list[set[str]] = [set()]
        # Parameters, whose first attribute is vLLM's whatever it is called.
        self.parameters: list[set[str]] = [set()]
        self.behind: tuple[type, ...] = ()
        # Attributes of classes in this file that hold vLLM's, and functions that return it.
        self.holding: set[str] = set()
        self.returning: set[str] = set()
        self.names: dict[str, int] = {}

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        before = self.behind
        for c, behind in adapters().items():
            if c.__module__ == module_of(self.file) and c.__name__ == node.name:
                self.behind = behind
                for name in defined(c):
                    if vllm_has(behind, name) and name not in dir(object):
                        self.names.setdefault(name, node.lineno)
        self.generic_visit(node)
        self.behind = before

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        given = {arg.arg for arg in _arguments(node) if self._is_vllms(arg)}
        given -= OTHERS.get(self.file, set())
        for default in (*node.args.defaults, *node.decorator_list):
            self.visit(default)
        self.followed.append(self.followed[-1] | given)
        self.parameters.append(self.parameters[-1] | given)
        if node.returns is not None and self._is_of_vllm(node.returns):
            self.returning.add(node.name)
        for statement in node.body:
            self.visit(statement)
        self.followed.pop()
        self.parameters.pop()

    def _is_vllms(self, arg: ast.arg) -> bool:
        if arg.arg in ("self", "cls"):
            # A method that replaces one of vLLM's by assignment.
            return not self.behind and arg.annotation is not None
        if arg.annotation is None:
            return True
        names = _names(arg.annotation)
        return "Callable" not in names and ("Any" in names or self._is_of_vllm(arg.annotation))

    def _is_of_vllm(self, annotation: ast.expr) -> bool:
        """Whether it names a class of vLLM's, or one of ours that derives from one."""
        return bool(_names(annotation) & (self.imported | {c.__name__ for c in adapters()}))

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.generic_visit(node)
        if self._is_of_vllm(node.annotation):
            if isinstance(node.target, ast.Attribute):
                self.holding.add(node.target.attr)
            elif isinstance(node.target, ast.Name):
                # A dataclass's field, or a variable.
                self.holding.add(node.target.id)
                self.followed[-1].add(node.target.id)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                for one, its in zip(target.elts, node.value.elts, strict=False):
                    self._follow(one, its)
            else:
                self._follow(target, node.value)

    def visit_For(self, node: ast.For) -> None:
        self._follow(node.target, node.iter)
        self.generic_visit(node)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.generic_visit(node)
        self._follow(node.target, node.value)

    def _comprehension(self, node: ast.expr) -> None:
        for generator in node.generators:  # type: ignore[attr-defined]
            self._follow(generator.target, generator.iter)
        self.generic_visit(node)

    visit_ListComp = visit_SetComp = _comprehension  # noqa: N815
    visit_DictComp = visit_GeneratorExp = _comprehension  # noqa: N815

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.generic_visit(node)
        if self._leads_to_vllm(node.value):
            self._touch(node.attr, node, first=self._is_root(node.value))

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        called = node.func.id if isinstance(node.func, ast.Name) else ""
        by_name = called in ("getattr", "hasattr", "setattr")
        if by_name and self._leads_to_vllm(node.args[0]) and isinstance(node.args[1], ast.Constant):
            self._touch(node.args[1].value, node, first=True)
        replaces = isinstance(node.func, ast.Attribute) and node.func.attr == "replace"
        given_to_vllm = self._leads_to_vllm(node.func) and not self._is_our_method(node.func)
        if given_to_vllm or (replaces and node.args and self._leads_to_vllm(node.args[0])):
            for keyword in node.keywords:
                if keyword.arg:
                    self._touch(keyword.arg, node, first=True)

    def _touch(self, name: str, node: ast.AST, first: bool) -> None:
        exempt = name in our_names() or (not first and name in EVERYBODYS)
        if not exempt and not name.startswith("__"):
            self.names.setdefault(name, node.lineno)  # type: ignore[attr-defined]

    def _follow(self, target: ast.expr, value: ast.expr) -> None:
        if self._leads_to_vllm(value):
            for node in ast.walk(target):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    self.followed[-1].add(node.id)
                elif isinstance(node, ast.Attribute) and _is_self(node.value) and not self.behind:
                    self.holding.add(node.attr)

    def _is_root(self, node: ast.expr) -> bool:
        """A parameter, an import, `self` or `super()`, whose attributes are vLLM's or ours."""
        if isinstance(node, ast.Name):
            return node.id in self.parameters[-1] | self.imported | {"self"}
        return _is_super(node)

    def _is_our_method(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Attribute) and node.attr in our_names()

    def _leads_to_vllm(self, node: ast.expr | None) -> bool:
        """Whether an expression's value is vLLM's."""
        if isinstance(node, ast.Name):
            followed = self.followed[-1] | self.imported
            return node.id in followed or (node.id == "self" and bool(self.behind))
        if isinstance(node, ast.Attribute):
            return self._attribute_leads(node)
        if isinstance(node, ast.Call):
            return self._call_leads(node)
        return any(map(self._leads_to_vllm, _parts(node)))

    def _attribute_leads(self, node: ast.Attribute) -> bool:
        if ast.unparse(node) == "torch.ops._C":
            return True
        if self._leads_to_vllm(node.value):
            return node.attr not in ENDS | our_names()
        return node.attr in self.holding

    def _call_leads(self, node: ast.Call) -> bool:
        if _is_super(node):
            return bool(self.behind)
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name in HANDING_ON:
            return any(map(self._leads_to_vllm, node.args))
        return name in self.returning or self._leads_to_vllm(node.func)


def _is_super(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and (node.func.id == "super")
    )


def _parts(node: ast.expr | None) -> Iterator[ast.expr]:
    """Of an expression that hands its parts on."""
    if isinstance(node, (ast.Subscript, ast.Starred)):
        yield node.value
    elif isinstance(node, ast.BoolOp):
        yield from node.values
    elif isinstance(node, ast.IfExp):
        yield from (node.body, node.orelse)
    elif isinstance(node, (ast.Tuple, ast.List)):
        yield from node.elts
    elif isinstance(node, (ast.ListComp, ast.GeneratorExp, ast.SetComp)):
        yield node.elt
    elif isinstance(node, ast.DictComp):
        yield from (node.key, node.value)


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _is_stored(node: ast.AST) -> TypeGuard[ast.Attribute]:
    return isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)


def _names(node: ast.AST) -> set[str]:
    """The names in an expression; in an annotation also those in quotes."""
    quoted = {
        name
        for n in ast.walk(node)
        if isinstance(n, ast.Constant) and isinstance(n.value, str)
        for name in n.value.replace("|", " ").split()
    }
    return quoted | {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def _bound(node: ast.Assign | ast.AnnAssign) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _arguments(node: ast.FunctionDef) -> Iterator[ast.arg]:
    yield from (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
