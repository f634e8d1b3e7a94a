# SPDX-License-Identifier: Apache-2.0
"""The target's hidden states, taken once for every step: a file a row, as speculators reads it.

`hidden_states/hs_{i}.safetensors` of row i: `token_ids [T] int64`, and `hidden_states [T, taps + 1,
H] bfloat16`, residual streams at the taps and behind the last layer, before its norm. That is what
vLLM's method `extract_hidden_states` gives, too, and `speculators generate-offline-data` writes.
`inputs.json` beside them names the taps, which no file does.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from vllm_eagle_pangu.config import refusal
from vllm_eagle_pangu.training.ranks import Ranks
from vllm_eagle_pangu.training.run_folder import check_inputs, whole_file
from vllm_eagle_pangu.training.teacher import Teacher

# Tokens of one forward, padding included.
BATCH_TOKENS = 4096
REPORT_S = 30.0
STATES_FOLDER = "hidden_states"


def states_file(folder: Path, row: int) -> Path:
    return folder / STATES_FOLDER / f"hs_{row}.safetensors"


def write_hidden_states(folder: Path, teacher: Teacher, ranks: Ranks) -> None:
    """Write the files that are missing under `folder`, a dataset's; every rank its share.

    Raises ValueError where the rows or the files are not this target's, or are of other taps, and
    where the disk is too small.
    """
    todo = list(_todo(folder, teacher, ranks))
    left = sum(len(ids) for tokens, _ in todo for ids in tokens)
    _check_room(folder, teacher, left * ranks.size)
    check_inputs(folder / STATES_FOLDER, {"head.taps": list(teacher.taps)}, ranks)
    with tqdm(total=left, unit="tok", desc="hidden states", mininterval=REPORT_S) as told:
        for tokens, missing in todo:
            # Behind a row's end nothing looks back at the padding.
            padded = pad_sequence(tokens, batch_first=True).to(teacher.device)
            states = teacher.read(padded).to("cpu", torch.bfloat16)
            for place, file in missing.items():
                ids = tokens[place]
                found = states[place, : len(ids)].contiguous()
                with whole_file(file) as partial:
                    partial.write_bytes(save({"token_ids": ids, "hidden_states": found}))
            told.update(sum(map(len, tokens)))
    ranks.meet()


def _todo(
    folder: Path, teacher: Teacher, ranks: Ranks
) -> Iterator[tuple[list[Tensor], dict[int, Path]]]:
    """Of each batch that is not done its rows' token ids, each [T], and which files are missing."""
    rows, vocabulary = load_rows(folder), teacher.config.vocab_size
    for number, batch in enumerate(_batches(list(rows.with_format(None)["seq_len"]))):
        if not ranks.owns(number):
            continue
        tokens = [rows[row]["input_ids"] for row in batch]
        highest = int(torch.cat(tokens).max())
        if highest >= vocabulary:
            problem = f"token {highest} is of another tokenizer: the target has {vocabulary}"
            mend = "name as target_model what the rows were prepared for"
            raise refusal("run_dir", str(folder), problem, mend)
        files = enumerate(states_file(folder, row) for row in batch)
        missing = {i: file for i, file in files if not _is_whole(file, teacher, tokens[i])}
        if missing:
            yield tokens, missing


def _batches(lengths: list[int]) -> Iterator[list[int]]:
    """Rows of one forward, the longest first.

    The same whatever is missing, and for any number of ranks: so is the rounding in the files.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    while order:
        count = max(1, BATCH_TOKENS // lengths[order[0]])
        yield order[:count]
        order = order[count:]


def load_rows(folder: Path) -> Any:
    """The dataset in `folder`, of torch tensors. Raises ValueError where it lacks a column."""
    from datasets import load_from_disk

    rows = load_from_disk(folder).with_format("torch")
    for column in ("input_ids", "loss_mask", "seq_len"):
        if column not in rows.column_names:
            problem = f"its dataset has no {column!r}"
            raise refusal("run_dir", str(folder), problem, "prepare it again")
    return rows


def _check_room(folder: Path, teacher: Teacher, tokens: int) -> None:
    needs = tokens * (len(teacher.taps) + 1) * teacher.config.hidden_size * 2
    free = shutil.disk_usage(folder).free
    if needs > free:
        problem = f"hidden states need {needs / 1e9:.1f} GB, its disk has {free / 1e9:.1f} GB"
        mend = "name a folder on another disk, or ask for fewer samples"
        raise refusal("run_dir", str(folder), problem, mend)


def _is_whole(path: Path, teacher: Teacher, ids: Tensor) -> bool:
    """Whether it is there and not cut off, as by a machine that went down.

    Raises ValueError for one that is whole, and of other tokens, other taps or another target.
    """
    try:
        file = safe_open(path, framework="pt")
    except (FileNotFoundError, SafetensorError):
        return False
    with file:
        named = {"token_ids", "hidden_states"} <= set(file.keys())
        if not named or not torch.equal(file.get_tensor("token_ids"), ids):
            problem = "has no states of its row in the dataset"
            raise refusal("run_dir", str(path), problem, "remove it, and run the same command")
        shape = file.get_slice("hidden_states").get_shape()
    needed = [len(ids), len(teacher.taps) + 1, teacher.config.hidden_size]
    if shape != needed:
        problem = f"hidden_states in {path} are {shape}, not {needed}"
        mend = "name the taps and the target that they were made with, or remove their folder"
        raise refusal("head.taps", list(teacher.taps), problem, mend)
    return True
