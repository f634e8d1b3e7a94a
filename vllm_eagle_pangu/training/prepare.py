# SPDX-License-Identifier: Apache-2.0
"""Stage `corpus`: choose files, train the tokenizer, store tokens and the held-out part."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from vllm_eagle_pangu.training.config import CorpusConfig
from vllm_eagle_pangu.training.corpus import STDLIB, SourceFile, is_held_out, select_files
from vllm_eagle_pangu.training.held_out_prompts import write_prompts
from vllm_eagle_pangu.training.tokenizer import encode_stream, save_tokenizer, train_bpe

TOKENS_FILE = "tokens.npy"
TOKENIZER_FOLDER = "tokenizer"
HELD_OUT_FILE = "heldout.txt"
PROMPTS_FILE = "heldout_prompts.jsonl"


def split_corpus(config: CorpusConfig) -> tuple[list[SourceFile], list[SourceFile]]:
    """Training files and held-out files."""
    files = select_files(config.packages, config.max_file_bytes, config.max_package_bytes)
    training: list[SourceFile] = []
    held_out: list[SourceFile] = []
    for file in files:
        rate = config.held_out_stdlib if file.package == STDLIB else config.held_out_packages
        (held_out if is_held_out(file.name, rate) else training).append(file)
    return training, held_out


def prepare_corpus(config: CorpusConfig, folder: Path, seed: int) -> None:
    """Write the stage's files under `folder`; does nothing if they are there."""
    if (folder / TOKENS_FILE).exists():
        return
    training, held_out = split_corpus(config)
    tokenizer = train_bpe((file.text for file in training), config.vocab_size)
    save_tokenizer(tokenizer, folder / TOKENIZER_FOLDER, config.max_length)
    stream = encode_stream(tokenizer, (file.text for file in training))
    listing = "".join(sorted(f"{file.name}\n" for file in held_out))
    (folder / HELD_OUT_FILE).write_text(listing)
    write_prompts(held_out, tokenizer, config.held_out_prompts, folder / PROMPTS_FILE, seed)
    partial = folder / f"partial-{TOKENS_FILE}"
    np.save(partial, stream)
    partial.rename(folder / TOKENS_FILE)
    characters = Counter[str]()
    for file in training:
        characters[file.package] += len(file.text)
    for package, size in characters.most_common():
        print(f"corpus {package} {size / 1e6:.2f}M characters")
    print(
        f"corpus {len(training)} files, {len(stream) / 1e6:.2f}M tokens of "
        f"{sum(characters.values()) / len(stream):.2f} characters; {len(held_out)} files held out",
        flush=True,
    )
