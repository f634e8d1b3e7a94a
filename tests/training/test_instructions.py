# SPDX-License-Identifier: Apache-2.0
"""Instruction prompts: their two sides, their kinds, and nothing of what is measured on."""

import ast
import json
import re
from collections import Counter
from pathlib import Path

import pytest
import yaml

from vllm_eagle_pangu.measure.prompts import (
    INSTRUCTIONS,
    packaged_humaneval,
    read_prompts,
    read_texts,
)
from vllm_eagle_pangu.training import instructions as module
from vllm_eagle_pangu.training.config import CorpusConfig
from vllm_eagle_pangu.training.corpus import is_held_out
from vllm_eagle_pangu.training.instructions import MAX_WORDS, instructions

COUNT = 8000
BOOK = yaml.safe_load(Path(module.__file__).with_suffix(".yaml").read_text())
CODE = {"write_function", "explain_code", "improve_code", "fix_code", "code_in_words", "software"}


@pytest.fixture(scope="module")
def training():
    return instructions(COUNT, seed=0)


@pytest.fixture(scope="module")
def shipped():
    return [json.loads(line) for line in INSTRUCTIONS.read_text().splitlines()]


def plain(text):
    """Lower-case words, for texts that differ in their line breaks and indents alone."""
    return " ".join(text.lower().split())


def test_the_same_seed_gives_the_same_prompts_and_another_others(training):
    assert instructions(COUNT, seed=0) == training
    others = {one.prompt for one in instructions(COUNT, seed=1)}
    assert len(others - {one.prompt for one in training}) > COUNT / 4


def test_prompts_are_distinct_and_as_many_as_asked(training):
    assert len({one.prompt for one in training}) == len(training) == COUNT


def test_more_than_there_are_is_refused(monkeypatch):
    only = {"share": 1, "from": "topics", "templates": ["Wish {person} a {season}."]}
    book = module._book() | {"kinds": {"only": only}}
    monkeypatch.setattr(module, "_book", lambda: book)
    with pytest.raises(ValueError, match=r"count=200: only \d+ instructions are there"):
        instructions(200, seed=0)


@pytest.mark.parametrize("held_out", [False, True])
def test_every_kind_is_there_by_its_share(held_out):
    found = Counter(one.kind for one in instructions(800, 3, held_out))
    shares = {kind: entry["share"] for kind, entry in BOOK["kinds"].items()}
    assert set(found) == set(shares)
    code = sum(found[kind] for kind in CODE) / 800
    assert 0.25 < code < 0.4


def test_lengths_run_from_a_few_words_to_long_texts(training):
    words = sorted(len(one.prompt.split()) for one in training)
    assert words[COUNT // 50] <= 6 and words[-COUNT // 100] >= 100 and words[-1] <= MAX_WORDS


def test_every_slot_is_filled_and_every_template_used():
    for kind, entry in BOOK["kinds"].items():
        known = set(BOOK["topics"]) | set(BOOK["details"])
        if entry["from"] != "topics":
            items = module.quotes(False)[entry["from"]]
            known |= {slot for item in items for slot in item.values} | {"broken", "does"}
        for template in entry["templates"]:
            slots = set(re.findall(r"\{([^}]*)\}", template))
            named = {slot for slot in slots if not re.fullmatch(r"\d+-\d+", slot)}
            assert named <= known, (kind, template)


def test_the_shipped_prompts_are_on_the_held_out_side(shipped):
    files = CorpusConfig(packages=()).held_out_stdlib
    for entry in shipped:
        for source in entry["sources"]:
            rate = files if source.startswith("stdlib/") else module.HELD_OUT
            assert is_held_out(source, rate), entry["id"]


def test_the_sides_share_no_source_no_function_and_no_text(training, shipped):
    held_out = {source for entry in shipped for source in entry["sources"]}
    assert not held_out & {source for one in training for source in one.sources}
    assert not {entry["prompt"] for entry in shipped} & {one.prompt for one in training}
    for kind, slot in (("functions", "doc"), ("texts", "text")):
        sides = (module.quotes(side)[kind] for side in (False, True))
        ours, theirs = ({item.values[slot] for item in items} for items in sides)
        assert ours and theirs and not ours & theirs


def test_the_bench_reads_the_shipped_prompts(shipped):
    prompts = read_prompts("instructions", INSTRUCTIONS)
    assert [prompt.id for prompt in prompts] == [f"instruction-{n:03d}" for n in range(80)]
    assert {entry["kind"] for entry in shipped} == set(BOOK["kinds"])


def test_no_prompt_holds_a_text_of_humaneval(training, shipped):
    try:
        problems = read_texts(str(packaged_humaneval()))
    except ValueError as error:
        pytest.skip(str(error))
    texts = [plain(problem) for problem in problems]
    for problem in problems:
        documented = [n for n in ast.walk(ast.parse(problem)) if isinstance(n, ast.FunctionDef)]
        docs = [plain(ast.get_docstring(node) or "") for node in documented]
        # Its first sentence too, where that is long enough to be nobody else's.
        sentences = [doc.split(".")[0] for doc in docs]
        texts += [doc for doc in docs if doc] + [s for s in sentences if len(s.split()) > 5]
    assert len(texts) > 2 * 164
    ours = "\n".join(
        plain(p) for p in [o.prompt for o in training] + [e["prompt"] for e in shipped]
    )
    assert not [text for text in texts if text in ours]
