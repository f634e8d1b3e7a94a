# SPDX-License-Identifier: Apache-2.0
"""A user's own text files as one stream of the target's token ids."""

from __future__ import annotations

from collections.abc import Iterator
from glob import glob
from pathlib import Path
from typing import Any

import numpy as np

from vllm_eagle_pangu.measure.prompts import json_lines


def read_texts(patterns: tuple[str, ...]) -> Iterator[str]:
    """Texts of the files that match: each .jsonl line's "text", any other file as a whole.

    Raises:
        ValueError: a pattern matches nothing, or a JSON line has no "text".
    """
    for pattern in patterns:
        paths = sorted(glob(pattern, recursive=True))
        if not paths:
            raise ValueError(f"texts: {pattern!r} matches no file: mend the pattern")
        for path in paths:
            if path.endswith(".jsonl"):
                yield from _json_lines(Path(path))
            else:
                yield Path(path).read_text(encoding="utf-8")


def tokenize_texts(tokenizer: Any, patterns: tuple[str, ...]) -> np.ndarray:
    """All texts, each with the tokenizer's special tokens and its end token: uint32 stream."""
    pieces = []
    for text in read_texts(patterns):
        ids = tokenizer(text)["input_ids"]
        if tokenizer.eos_token_id is not None:
            ids = [*ids, tokenizer.eos_token_id]
        pieces.append(np.asarray(ids, dtype=np.uint32))
    return np.concatenate(pieces)


def _json_lines(path: Path) -> Iterator[str]:
    for number, record in json_lines(path):
        if not isinstance(record, dict) or not isinstance(record.get("text"), str):
            raise ValueError(f'texts: {path} line {number} has no string "text": add it')
        yield record["text"]
