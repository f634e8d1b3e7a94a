# SPDX-License-Identifier: Apache-2.0
"""Answers as stage `answers` leaves them, without the minutes of a model that makes them."""

from pathlib import Path

import torch

from vllm_eagle_pangu.training.answers import save_rows
from vllm_eagle_pangu.training.hidden_states import write_hidden_states
from vllm_eagle_pangu.training.packed_rows import PackedBatch
from vllm_eagle_pangu.training.ranks import Ranks
from vllm_eagle_pangu.training.teacher import Teacher


def packed(teacher: Teacher, tokens: torch.Tensor, prompt: int = 0) -> PackedBatch:
    """tokens: [B, T], one answer a row, to a prompt of so many tokens."""
    spoken = torch.arange(tokens.shape[1]).expand_as(tokens) >= prompt
    return PackedBatch(tokens, torch.zeros_like(tokens), spoken, teacher.read(tokens))


def prepare(folder: Path, rows: list[list[int]], prompt: int) -> Path:
    """A prepared folder without hidden states."""
    folder.mkdir(parents=True, exist_ok=True)
    masks = [[0] * prompt + [1] * (len(row) - prompt) for row in rows]
    save_rows([{"input_ids": r, "loss_mask": m} for r, m in zip(rows, masks, strict=True)], folder)
    return folder


def prepare_with_states(folder: Path, teacher: Teacher, rows: list[list[int]], prompt: int) -> Path:
    write_hidden_states(prepare(folder, rows, prompt), teacher, Ranks())
    return folder
