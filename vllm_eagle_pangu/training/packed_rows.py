# SPDX-License-Identifier: Apache-2.0
"""Batches of one shape, as a compiled step needs them, from answers of many lengths."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor
from torch.nn.functional import pad

from vllm_eagle_pangu.training.hidden_states import load_rows, states_file


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

    def to(self, device: torch.device) -> PackedBatch:
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
