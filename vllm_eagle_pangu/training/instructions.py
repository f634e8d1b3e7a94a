# SPDX-License-Identifier: Apache-2.0
"""Instructions as people type them to an assistant, from what is on every machine.

A template of `instructions.yaml` is filled with its topics, or with what `quotable.py` finds
installed. Whatever fills a slot has a name, and a hash of that name decides its side: no topic,
function or text of a held-out prompt is in a training prompt.
"""

import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from vllm_eagle_pangu.measure.files import write_json_lines
from vllm_eagle_pangu.training import quotable
from vllm_eagle_pangu.training.corpus import is_held_out
from vllm_eagle_pangu.training.quotable import HELD_OUT, Item

MAX_WORDS = 250
_STALE = 300
"""Draws in a row without a new prompt after which a kind counts as used up."""
_SLOT = re.compile(r"\{(\w+|\d+-\d+)\}")
_OPENED, _CLOSED, _CARELESS = 0.08, 0.22, 0.32
"""Up to which of 1 a prompt is typed with a greeting, with a wish at its end, all lower case."""


@dataclass(frozen=True)
class Instruction:
    """`sources`: the names whose hashes decided its side."""

    kind: str
    sources: tuple[str, ...]
    prompt: str


def instructions(count: int, seed: int, held_out: bool = False) -> list[Instruction]:
    """`count` distinct prompts of one side, kinds by their shares.

    The same ones for the same installed versions. Raises ValueError where there are fewer.
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


def write_instructions(path: Path, count: int, seed: int, held_out: bool = False) -> None:
    """Write `count` prompts of one side as JSON lines, each with its id, kind and sources.

    `measure/instructions.jsonl` is 80 of the held-out side with seed 0.
    """
    chosen = instructions(count, seed, held_out)
    rows = ({"id": f"instruction-{n:03d}", **asdict(one)} for n, one in enumerate(chosen))
    write_json_lines(rows, path)


@cache
def _book() -> dict[str, Any]:
    book: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
    return book


def _drawing(kind: str, held_out: bool, rng: random.Random) -> Callable[[], Instruction | None]:
    """A function that draws one prompt, or None where what it drew does not fit."""
    entry, details = _book()["kinds"][kind], _book()["details"]
    topics = {
        slot: [item for item in items if is_held_out(f"{slot}/{item}", HELD_OUT) == held_out]
        for slot, items in _book()["topics"].items()
    }
    quoted = entry["from"] != "topics"
    items = getattr(quotable, entry["from"])(held_out) if quoted else [Item("", {})]

    def draw() -> Instruction | None:
        template, item = rng.choice(entry["templates"]), rng.choice(items)
        values = _with_faults(item.values) if kind == "fix_code" else _with_verb(item.values)
        sources, words = [item.source] * quoted, list[str]()
        for slot in _SLOT.findall(template):
            if "-" in slot:
                words.append(str(rng.randint(*map(int, slot.split("-")))))
            elif slot in values:
                words.append(values[slot])
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


def _with_faults(values: dict[str, str]) -> dict[str, str]:
    """With a `broken` form of the code, where one of the book's faults can be put into it."""
    faults = [(right, wrong) for right, wrong in _book()["faults"] if right in values["bare"]]
    if not faults:
        return values
    right, wrong = faults[len(values["bare"]) % len(faults)]
    return values | {"broken": values["bare"].replace(right, wrong, 1)}


def _with_verb(values: dict[str, str]) -> dict[str, str]:
    """With what the function `does`, as it goes on after "that"."""
    verb, _, rest = values.get("doc", "").partition(" ")
    known = verb.lower().removesuffix("s") in _book()["verbs"]
    return values | {"does": f"{verb.lower().removesuffix('s')}s {rest}"} if known else values
