# SPDX-License-Identifier: Apache-2.0
"""Prompts from held-out files: a function header, with some of the source before it."""

from __future__ import annotations

import ast
import json
import random
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer

from vllm_eagle_pangu.training.corpus import STDLIB, SourceFile

MIN_TOKENS, MAX_TOKENS = 3, 900
_CONTEXT_LINES = (0, 0, 2, 4, 8, 12, 16, 24, 60)
"""Lines of source kept before a header; one is drawn per prompt, so lengths spread."""


def write_prompts(
    files: list[SourceFile], tokenizer: Tokenizer, count: int, path: Path, seed: int
) -> None:
    """Write up to `count` JSON lines {"id", "source", "prompt"}, spread over the files.

    Standard-library files come first; other packages only fill up what is missing.
    """
    rng = random.Random(seed)
    ours = [file for file in files if file.package == STDLIB]
    others = [file for file in files if file.package != STDLIB]
    prompts: list[tuple[str, str]] = []
    for group in (ours, others):
        for source, prompt in _round_robin(group, rng):
            if len(prompts) == count:
                break
            if MIN_TOKENS <= len(tokenizer.encode(prompt).ids) <= MAX_TOKENS:
                prompts.append((source, prompt))
    lines = (
        json.dumps({"id": f"heldout-{place:03d}", "source": source, "prompt": prompt})
        for place, (source, prompt) in enumerate(prompts)
    )
    path.write_text("".join(line + "\n" for line in lines))


def _round_robin(files: list[SourceFile], rng: random.Random) -> Iterator[tuple[str, str]]:
    """One header of each file in turn, until none is left."""
    queues = []
    for file in files:
        headers = list(_headers(file.text))
        rng.shuffle(headers)
        queues.append((file, headers))
    while any(headers for _, headers in queues):
        for file, headers in queues:
            if headers:
                first, last = headers.pop()
                lines = file.text.splitlines(keepends=True)
                start = max(0, first - rng.choice(_CONTEXT_LINES))
                yield f"{file.name}:{first + 1}", "".join(lines[start:last]).rstrip("\n")


def _headers(text: str) -> Iterator[tuple[int, int]]:
    """Line ranges [first, last) of a def line with its docstring, 0-based."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[0]
            one_liner = body.lineno == node.lineno
            has_docstring = ast.get_docstring(node) is not None and len(node.body) > 1
            if not one_liner:
                last = body.end_lineno if has_docstring else body.lineno - 1
                assert last is not None
                yield node.lineno - 1, last
