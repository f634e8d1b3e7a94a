# SPDX-License-Identifier: Apache-2.0
"""The target's hidden states over the prepared answers: a file a row, as speculators reads them.

`hidden_states/hs_{i}.safetensors` of row i: `token_ids [T] int64`, and `hidden_states [T, taps + 1,
H] bfloat16`, residual streams at the taps and behind the last layer, before its norm. That is what
vLLM's method `extract_hidden_states` gives, too, and `speculators generate-offline-data` writes.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch.nn.utils.rnn import pad_sequence

from vllm_eagle_pangu.config import refusal
from vllm_eagle_pangu.training.ranks import Ranks
from vllm_eagle_pangu.training.teacher import Teacher

# Tokens of one forward, padding included.
BATCH_TOKENS = 4096
REPORT_S = 30.0


def states_file(folder: Path, row: int) -> Path:
    return folder / "hidden_states" / f"hs_{row}.safetensors"


def write_hidden_states(folder: Path, teacher: Teacher, ranks: Ranks) -> None:
    """Write the files that are missing under `folder`, a dataset's; every rank its share.

    Raises ValueError where the rows are not this target's, or the disk is too small for them.
    """
    rows = load_rows(folder)
    lengths = list(rows.with_format(None)["seq_len"])
    mine = [i for i in range(len(rows)) if ranks.owns(i) and not _is_whole(states_file(folder, i))]
    mine.sort(key=lambda i: lengths[i])
    _check_room(folder, teacher, sum(lengths[i] for i in mine) * ranks.size)
    started = told = time.monotonic()
    done = 0
    while mine:
        count = max(1, BATCH_TOKENS // lengths[mine[-1]])
        taken, mine = mine[-count:], mine[:-count]
        _write(folder, teacher, {i: rows[i]["input_ids"] for i in taken})
        done += sum(lengths[i] for i in taken)
        if time.monotonic() - told > REPORT_S:
            told = time.monotonic()
            left = sum(lengths[i] for i in mine)
            rate = done / (told - started)
            print(f"hidden states: {rate:.0f} tok/s, ETA {left / rate / 60:.1f} min", flush=True)
    ranks.meet()


def load_rows(folder: Path) -> Any:
    """The dataset in `folder`, of torch tensors. Raises ValueError where it lacks a column."""
    from datasets import load_from_disk

    rows = load_from_disk(folder).with_format("torch")
    for column in ("input_ids", "loss_mask", "seq_len"):
        if column not in rows.column_names:
            raise refusal(
                "run_dir", str(folder), f"its dataset has no {column!r}", "prepare it again"
            )
    return rows


def _check_room(folder: Path, teacher: Teacher, tokens: int) -> None:
    needs = tokens * (len(teacher.taps) + 1) * teacher.config.hidden_size * 2
    free = shutil.disk_usage(folder).free
    if needs > free:
        raise refusal(
            "run_dir",
            str(folder),
            f"hidden states need {needs / 1e9:.1f} GB, its disk has {free / 1e9:.1f} GB",
            "name a folder on another disk, or ask for fewer samples",
        )


def _is_whole(path: Path) -> bool:
    """Whether it is there and not cut off, as by a machine that went down."""
    try:
        with safe_open(path, framework="pt"):
            return True
    except (FileNotFoundError, SafetensorError):
        return False


def _write(folder: Path, teacher: Teacher, rows: dict[int, torch.Tensor]) -> None:
    vocabulary = teacher.config.vocab_size
    highest = max(int(ids.max()) for ids in rows.values())
    if highest >= vocabulary:
        raise refusal(
            "target_model",
            str(folder),
            f"token {highest} was prepared with another tokenizer: the target has {vocabulary}",
            "name the target that the rows were prepared for",
        )
    # Behind a row's end nothing looks back at the padding.
    tokens = pad_sequence(list(rows.values()), batch_first=True).to(teacher.device)
    states = teacher.read(tokens).to("cpu", torch.bfloat16)
    for (row, ids), found in zip(rows.items(), states, strict=True):
        path = states_file(folder, row)
        path.parent.mkdir(exist_ok=True)
        partial = path.with_suffix(".partial")
        save_file({"token_ids": ids, "hidden_states": found[: len(ids)].contiguous()}, partial)
        partial.rename(path)
