# SPDX-License-Identifier: Apache-2.0
"""Batches of one shape from prepared rows of many lengths: one answer after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vllm_eagle_pangu.config import refusal
from vllm_eagle_pangu.training.hidden_states import load_rows, states_file


@dataclass(frozen=True)
class PackedBatch:
    """B packed rows of T places; a place beyond the last answer is of document -1."""

    tokens: Tensor
    """[B, T] int64"""
    document: Tensor
    """[B, T] int64: which answer a place is of; a number is of one answer in its row."""
    spoken: Tensor
    """[B, T] bool: whether the token is the target's own, and not the prompt's."""
    states: Tensor
    """[B, T, taps + 1, H] bfloat16: residual streams at the taps, and behind the last layer."""

    def to(self, device: torch.device) -> PackedBatch:
        return PackedBatch(
            self.tokens.to(device),
            self.document.to(device),
            self.spoken.to(device),
            self.states.to(device),
        )


class PackedRows:
    """Endless batches of rows of a prepared folder; batch `i` depends on seed and `i` only."""

    def __init__(
        self, folder: Path, rows: Sequence[int], length: int, batch: int, seed: int
    ) -> None:
        self._folder, self._batch, self._length, self._seed = folder, batch, length, seed
        self._data = load_rows(folder)
        self._rows = list(rows)
        lengths = self._data.with_format(None)["seq_len"]
        self._lengths = {row: min(lengths[row], length) for row in rows}
        self._turns: dict[int, list[list[int]]] = {}

    def batch(self, index: int) -> PackedBatch:
        """Batch number `index`. Raises ValueError for a file that is not what the trainer needs."""
        turn = 0
        while index >= (size := max(1, len(self._packed(turn)) // self._batch)):
            index -= size
            turn += 1
        packed = self._packed(turn)[index * self._batch : (index + 1) * self._batch]
        return _stack([self._row(members) for members in packed])

    def all(self) -> list[PackedBatch]:
        """Every row once, in batches."""
        packed = self._packed(0)
        starts = range(0, len(packed), self._batch)
        return [_stack([self._row(m) for m in packed[i : i + self._batch]]) for i in starts]

    def _packed(self, turn: int) -> list[list[int]]:
        """Which answers lie in which packed row, in the order of that turn through the data."""
        if turn not in self._turns:
            order = np.random.default_rng([self._seed, turn]).permutation(self._rows).tolist()
            packed, room = list[list[int]](), 0
            for row in order:
                if self._lengths[row] > room:
                    packed.append([])
                    room = self._length
                packed[-1].append(row)
                room -= self._lengths[row]
            self._turns[turn] = packed
        return self._turns[turn]

    def _row(self, members: list[int]) -> PackedBatch:
        """[1, T] of one packed row."""
        parts = [self._read(row) for row in members]
        tokens, spoken, states = (
            torch.cat([part[i] for part in parts])[: self._length] for i in range(3)
        )
        document = torch.cat([torch.full((len(part[0]),), i) for i, part in enumerate(parts)])
        free = self._length - len(tokens)
        return PackedBatch(
            torch.nn.functional.pad(tokens, (0, free))[None],
            torch.nn.functional.pad(document, (0, free), value=-1)[None],
            torch.nn.functional.pad(spoken, (0, free))[None],
            torch.nn.functional.pad(states, (0, 0, 0, 0, 0, free))[None],
        )

    def _read(self, row: int) -> tuple[Tensor, Tensor, Tensor]:
        """Token ids, spoken and states of one answer."""
        path, length = states_file(self._folder, row), self._lengths[row]
        problem = "its token_ids are not the dataset's"
        try:
            with safe_open(path, framework="pt") as file:
                ids, states = (
                    file.get_slice(name)[:length] for name in ("token_ids", "hidden_states")
                )
        except (FileNotFoundError, SafetensorError) as error:
            problem, ids = str(error), torch.empty(0)
        kept = self._data[row]
        if not torch.equal(ids, kept["input_ids"][:length]):
            raise refusal("run_dir", str(path), problem, "remove it, and run the same command")
        return ids, kept["loss_mask"][:length].bool(), states


def _stack(rows: list[PackedBatch]) -> PackedBatch:
    return PackedBatch(
        torch.cat([row.tokens for row in rows]),
        torch.cat([row.document for row in rows]),
        torch.cat([row.spoken for row in rows]),
        torch.cat([row.states for row in rows]),
    )
