# SPDX-License-Identifier: Apache-2.0
"""Texts as one stream of token ids, for windows to learn from or to go on with, in seeded order."""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from glob import glob
from pathlib import Path
from typing import Any

import numpy as np

from vllm_eagle_pangu.config import refusal
from vllm_eagle_pangu.measure import prompts
from vllm_eagle_pangu.training.run_folder import whole_file


def read_texts(patterns: tuple[str, ...]) -> Iterator[str]:
    """Texts of the files that match: each .jsonl line's "text", any other file as a whole.

    Raises ValueError where a pattern matches nothing, or a JSON line has no "text".
    """
    for pattern in patterns:
        paths = sorted(glob(pattern, recursive=True))
        if not paths:
            raise refusal("texts", pattern, "matches no file", "mend the pattern")
        for path in paths:
            if path.endswith(".jsonl"):
                yield from prompts.read_texts(path, "text", "texts")
            else:
                yield Path(path).read_text(encoding="utf-8")


def write_stream(path: Path, tokenizer: Any, texts: Iterable[str]) -> np.ndarray:
    """All texts, each with the tokenizer's special tokens and its end token: uint32 stream."""
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    # A text may be longer than any prompt, which is no reason to warn.
    encoded = (tokenizer(text, verbose=False)["input_ids"] for text in texts)
    stream = np.concatenate([np.asarray([*ids, *end], dtype=np.uint32) for ids in encoded])
    with whole_file(path) as partial, open(partial, "wb") as file:
        np.save(file, stream)
    return stream


class TokenWindows:
    """Endless shuffled windows of `length + 1` tokens; window `i` depends on seed and `i` only.

    Each pass over the stream starts at another offset, so windows differ between passes.
    """

    def __init__(self, stream: np.ndarray, length: int, seed: int) -> None:
        if len(stream) < 2 * length + 1:
            raise ValueError(
                f"sequence length {length} needs {2 * length + 1} tokens, the corpus has "
                f"{len(stream)}: add files or shorten the sequence"
            )
        self._stream, self.length, self._seed = stream, length, seed
        self._per_pass = (len(stream) - length - 1) // length
        self._pass = lru_cache(maxsize=1)(self._shuffled)

    def __getitem__(self, number: int) -> np.ndarray:
        """[length + 1] int64"""
        turn, place = divmod(number, self._per_pass)
        start = self._pass(turn)[place]
        return self._stream[start : start + self.length + 1].astype(np.int64)

    def _shuffled(self, turn: int) -> np.ndarray:
        """Where the windows of that pass start, in its order."""
        rng = np.random.default_rng([self._seed, self.length, turn])
        offset = rng.integers(self.length)
        return rng.permutation(self._per_pass) * self.length + offset
