# SPDX-License-Identifier: Apache-2.0
"""Train a small openPangu-architecture target on the corpus, from nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from vllm_eagle_pangu.training import causal_attention
from vllm_eagle_pangu.training.budget import Budget, learning_rate_factor
from vllm_eagle_pangu.training.config import TargetConfig
from vllm_eagle_pangu.training.cross_entropy import chunked_cross_entropy
from vllm_eagle_pangu.training.optimizers import MuonWithAdamW
from vllm_eagle_pangu.training.progress import ProgressLog
from vllm_eagle_pangu.training.run_state import Position, load_state, save_state
from vllm_eagle_pangu.training.tokenizer import BOS_ID, EOS_ID, PAD_ID
from vllm_eagle_pangu.training.windows import TokenWindows


def build_target(config: TargetConfig, vocab_size: int) -> LlamaForCausalLM:
    """A freshly initialised target: Llama's block with openPangu's biases."""
    llama = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.max_positions,
        rms_norm_eps=1e-5,
        attention_bias=True,
        tie_word_embeddings=True,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
        pad_token_id=PAD_ID,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
    )
    llama._attn_implementation = causal_attention.register()
    return LlamaForCausalLM(llama)


@dataclass
class _Batches:
    """Short windows first, long ones for the last part of the run."""

    config: TargetConfig
    short: TokenWindows
    long: TokenWindows

    @classmethod
    def over(cls, stream: np.ndarray, config: TargetConfig, seed: int) -> _Batches:
        def windows(length: int) -> TokenWindows:
            return TokenWindows(stream, length, config.tokens_per_step // length, seed)

        return cls(config, windows(config.sequence_length), windows(config.long_sequence_length))

    def at(self, step: int, progress: float) -> Tensor:
        source = self.long if progress >= self.config.long_from else self.short
        return source.batch(step)


def pretrain(
    config: TargetConfig,
    stream: np.ndarray,
    vocab_size: int,
    folder: Path,
    seed: int,
    export: Callable[[LlamaForCausalLM], None],
) -> LlamaForCausalLM:
    """Train until the budget is used up, resuming from `folder/state.pt` if it is there.

    Writes `folder/log.csv` and `folder/state.pt`; `export` is called at every save.
    """
    torch.manual_seed(seed)
    model = build_target(config, vocab_size)
    optimizer = MuonWithAdamW(model, config.matrix_lr, config.other_lr)
    position = Position()
    saved = load_state(folder)
    if saved is not None:
        position, parts = saved
        model.load_state_dict(parts["model"])
        optimizer.load_state_dict(parts["optimizer"])
    budget = Budget(config.max_tokens, config.max_minutes)
    log = ProgressLog(folder / "log.csv", config.log_every, position.step)
    body = torch.compile(model.model, dynamic=False) if config.compile else model.model
    batches = _Batches.over(stream, config, seed)
    progress = budget.progress(position.tokens, position.seconds)
    last_save = position.seconds
    while progress < 1.0:
        started = time.monotonic()
        tokens = batches.at(position.step, progress)
        loss = _loss(model, body, tokens, config.micro_batch_tokens)
        factor = learning_rate_factor(progress, config.warmup, config.hold)
        norm = optimizer.step(factor, config.max_grad_norm)
        position.step += 1
        position.tokens += tokens[:, 1:].numel()
        position.seconds += time.monotonic() - started
        progress = budget.progress(position.tokens, position.seconds)
        log.add(position, progress, {"loss": loss, "grad_norm": norm, "lr_factor": factor})
        if progress >= 1.0 or position.seconds - last_save >= 60 * config.save_minutes:
            export(model)
            save_state(folder, position, model=model.state_dict(), optimizer=optimizer.state_dict())
            last_save = position.seconds
    return model.eval()


def _loss(model: LlamaForCausalLM, body: torch.nn.Module, tokens: Tensor, rows: int) -> float:
    """Mean loss of one step, gradients accumulated. tokens: [B, T + 1]."""
    total = 0.0
    parts = tokens.split(max(1, rows // (tokens.shape[1] - 1)))
    for part in parts:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = body(input_ids=part[:, :-1], use_cache=False).last_hidden_state
        labels = part[:, 1:].reshape(-1)
        mean = torch.full(labels.shape, 1 / len(labels))
        loss, _ = chunked_cross_entropy(
            hidden.flatten(0, 1), model.lm_head.weight, labels, mean, rows=256
        )
        weight = part.shape[0] / tokens.shape[0]
        (loss * weight).backward()
        total += float(loss.detach()) * weight
    return total
