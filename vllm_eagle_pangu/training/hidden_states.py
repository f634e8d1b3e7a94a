# SPDX-License-Identifier: Apache-2.0
"""The target as a head's teacher: its hidden states, taken once for every step, a file a row.

`hidden_states/hs_{i}.safetensors` of row i: `token_ids [T] int64`, and `hidden_states [T, taps + 1,
H] bfloat16`, residual streams at the taps and behind the last layer, before its norm. That is what
vLLM's method `extract_hidden_states` gives, too, and `speculators generate-offline-data` writes and
speculators reads. `inputs.json` beside them names the taps, which no file does. Read, they are
batches of one shape, as a compiled step needs them, packed from answers of many lengths.
"""

import shutil
from collections.abc import Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from vllm_eagle_pangu.config import refusal
from vllm_eagle_pangu.training.run_folder import Ranks, check_inputs, whole_file

# Tokens of one forward, padding included.
BATCH_TOKENS = 4096
STATES_FOLDER = "hidden_states"


class Teacher:
    """A frozen target. Taps count layers: tap k is the residual stream after k layers."""

    def __init__(self, model: Any, taps: tuple[int, ...]) -> None:
        layers = model.config.num_hidden_layers
        if sorted(set(taps)) != list(taps) or taps[0] < 1 or taps[-1] > layers:
            problem = f"must be ascending, distinct and in 1..{layers}"
            raise refusal("head.taps", list(taps), problem, "tap k is the state after k layers")
        self.model, self.taps = model.eval().requires_grad_(False), taps
        self.config, self.device = model.config, model.device
        self.embedding: nn.Embedding = model.get_input_embeddings()
        self.output_weight: Tensor = model.get_output_embeddings().weight  # [V, H_t]
        self._caught: dict[int, Tensor] = {}
        for tap in {*taps, layers}:
            model.model.layers[tap - 1].register_forward_hook(partial(self._catch, tap))

    @torch.no_grad()
    def read(self, tokens: Tensor) -> Tensor:
        """tokens: [B, T] -> [B, T, taps + 1, H], residual streams at taps and behind all layers.

        The last is not normed yet: `logits` does that.
        """
        self.model.model(input_ids=tokens, use_cache=False)
        taps = (*self.taps, self.config.num_hidden_layers)
        found = torch.stack([self._caught[tap] for tap in taps], dim=2)
        self._caught.clear()
        return found

    @torch.no_grad()
    def logits(self, last: Tensor) -> Tensor:
        """last: [..., H], behind all layers -> [..., V]."""
        return self.model.model.norm(last) @ self.output_weight.T

    def _catch(self, tap: int, _module: nn.Module, _inputs: Any, output: Any) -> None:
        self._caught[tap] = output[0] if isinstance(output, tuple) else output


def states_file(folder: Path, row: int) -> Path:
    return folder / STATES_FOLDER / f"hs_{row}.safetensors"


def write_hidden_states(folder: Path, teacher: Teacher, ranks: Ranks) -> None:
    """Write the files that are missing under `folder`, a dataset's; every rank its share.

    Raises ValueError where the rows or the files are not this target's, or are of other taps, and
    where the disk is too small.
    """
    todo = list(_todo(folder, teacher, ranks))
    left = sum(len(ids) for tokens, _ in todo for ids in tokens)
    needs = left * ranks.size * (len(teacher.taps) + 1) * teacher.config.hidden_size * 2
    if needs > (free := shutil.disk_usage(folder).free):
        problem = f"hidden states need {needs / 1e9:.1f} GB, its disk has {free / 1e9:.1f} GB"
        mend = "name a folder on another disk, or ask for fewer samples"
        raise refusal("run_dir", str(folder), problem, mend)
    check_inputs(folder / STATES_FOLDER, {"head.taps": list(teacher.taps)}, ranks)
    with tqdm(total=left, unit="tok", desc="hidden states", mininterval=30) as told:
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
    for batch in ranks.share(_batches(list(rows.with_format(None)["seq_len"]))):
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


class PackedBatch(NamedTuple):
    """B packed rows of T places; a place beyond the last answer is of document -1."""

    tokens: Tensor
    """[B, T] int64"""
    document: Tensor
    """[B, T] int64: which answer a place is of; a number is of one answer in its row."""
    spoken: Tensor
    """[B, T] bool: whether the token is the target's own, and not the prompt's."""
    states: Tensor
    """[B, T, taps + 1, H] bfloat16: residual streams at the taps, and behind the last layer."""

    def to(self, device: torch.device) -> "PackedBatch":
        return PackedBatch(*(part.to(device) for part in self))


class PackedRows:
    """Endless batches of rows of a prepared folder; batch `i` depends on seed and `i` only."""

    def __init__(
        self, folder: Path, rows: Sequence[int], length: int, batch: int, seed: int
    ) -> None:
        self._folder, self._batch, self._length, self._seed = folder, batch, length, seed
        self._data = load_rows(folder)
        lengths = self._data.with_format(None)["seq_len"]
        self._lengths = {row: min(lengths[row], length) for row in rows}
        self._packed = cache(self._pack)

    def batch(self, index: int) -> PackedBatch:
        turn = 0
        while index >= (size := max(1, len(self._packed(turn)) // self._batch)):
            index -= size
            turn += 1
        return self._read(turn, index)

    def all(self) -> list[PackedBatch]:
        """Every row once, in batches."""
        return [self._read(0, i) for i in range(-(-len(self._packed(0)) // self._batch))]

    def _pack(self, turn: int) -> list[list[int]]:
        """Which answers lie in which packed row, in the order of that turn through the data."""
        rng = np.random.default_rng([self._seed, turn])
        packed, room = list[list[int]](), 0
        for row in rng.permutation(list(self._lengths)).tolist():
            if self._lengths[row] > room:
                packed.append([])
                room = self._length
            packed[-1].append(row)
            room -= self._lengths[row]
        return packed

    def _read(self, turn: int, index: int) -> PackedBatch:
        part = slice(index * self._batch, (index + 1) * self._batch)
        rows = [self._row(members) for members in self._packed(turn)[part]]
        return PackedBatch(*map(torch.stack, zip(*rows, strict=True)))

    def _row(self, members: list[int]) -> list[Tensor]:
        """The parts of one packed row, each [T, ...]."""
        answers = []
        for number, row in enumerate(members):
            length = self._lengths[row]
            with safe_open(states_file(self._folder, row), framework="pt") as file:
                ids, states = (file.get_slice(f)[:length] for f in ("token_ids", "hidden_states"))
            spoken = self._data[row]["loss_mask"][:length].bool()
            answers.append((ids, torch.full((length,), number), spoken, states))
        parts = [torch.cat(part) for part in zip(*answers, strict=True)]
        free = self._length - len(parts[0])
        return [
            pad(part, (*(0, 0) * (part.ndim - 1), 0, free), value=beyond)
            for part, beyond in zip(parts, (0, -1, 0, 0), strict=True)
        ]
