# SPDX-License-Identifier: Apache-2.0
"""Answers as stage `answers` leaves them, without the minutes of a model that makes them."""

from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import LlamaConfig

from vllm_eagle_pangu.training.answers import save_rows
from vllm_eagle_pangu.training.config import HeadConfig
from vllm_eagle_pangu.training.head import EagleHead, head_config
from vllm_eagle_pangu.training.hidden_states import PackedBatch, Teacher, write_hidden_states
from vllm_eagle_pangu.training.run_folder import Ranks

# Section `head` of a run that takes seconds, for the tiny Llama.
HEAD = {
    "taps": [1, 2],
    "draft_vocab_size": 64,
    "intermediate_size": 48,
    "rollout_steps": 2,
    "length": 64,
    "batch": 2,
    "held_out": 2,
    "max_tokens": 128,
    "compile": False,
}


def tiny_shape(
    taps: tuple[int, ...], draft_vocab_size: int = 31, parallel: bool = False
) -> LlamaConfig:
    """Of a head with 4 heads of 8, for a target with 63 tokens and states of 32."""
    target = LlamaConfig(
        vocab_size=63,
        hidden_size=32,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=128,
        rms_norm_eps=1e-5,
    )
    sizes = {"draft_vocab_size": draft_vocab_size, "intermediate_size": 40}
    return head_config(HeadConfig(taps=taps, max_tokens=1, parallel=parallel, **sizes), target)


def load_head(folder: Path) -> EagleHead:
    """Read what `save_head` wrote, as float32."""
    weights = load_file(folder / "model.safetensors")
    d2t, t2d = weights.pop("d2t"), weights.pop("t2d")
    target_ids = d2t + torch.arange(len(d2t))
    assert torch.equal(target_ids, t2d.nonzero().flatten())
    head = EagleHead(LlamaConfig.from_pretrained(folder), target_ids)
    head.load_state_dict(weights)
    return head.eval()


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
