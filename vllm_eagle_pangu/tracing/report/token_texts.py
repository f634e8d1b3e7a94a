# SPDX-License-Identifier: Apache-2.0
"""Texts of single tokens, as they stand within a text."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vllm_eagle_pangu.config import refusal


def read_tokenizer(folder: Path) -> Any:
    """The tokenizer in `folder`; nothing is fetched and none of the folder's code is run.

    Raises:
        ValueError: transformers is not installed or finds no tokenizer there.
    """
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise refusal(
            "tokenizer", str(folder), "transformers is not installed", "pip install transformers"
        ) from error
    if not folder.is_dir():
        raise refusal("tokenizer", str(folder), "no such folder", "pass the target's folder")
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise refusal(
            "tokenizer", str(folder), f"no tokenizer there: {error}", "pass the target's folder"
        ) from error


def token_texts(tokenizer: Any, tokens: Iterable[int]) -> dict[int, str]:
    """Text of each token; "" for ids the tokenizer does not have.

    Decoded behind another token: alone, many tokenizers drop a token's leading space.
    """
    as_it_stands = {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}
    anchor = tokenizer.encode("a", add_special_tokens=False)[:1]
    before = len(tokenizer.decode(anchor, **as_it_stands))
    texts = {}
    for token in tokens:
        try:
            texts[token] = tokenizer.decode([*anchor, token], **as_it_stands)[before:]
        except (IndexError, OverflowError, ValueError, TypeError):
            texts[token] = ""
    return texts
