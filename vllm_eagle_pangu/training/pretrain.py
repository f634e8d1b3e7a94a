# SPDX-License-Identifier: Apache-2.0
"""Stage `target`: train a small openPangu-architecture target on the corpus, from nothing."""

import shutil
from pathlib import Path

import numpy as np
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from vllm_eagle_pangu.models.pangu_as_llama import save_llama_as_pangu
from vllm_eagle_pangu.training.config import TargetConfig
from vllm_eagle_pangu.training.corpus import BOS_ID, EOS_ID, PAD_ID
from vllm_eagle_pangu.training.run_folder import Ranks
from vllm_eagle_pangu.training.token_stream import TokenWindows
from vllm_eagle_pangu.training.training_run import Figures, TrainingRun


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
        # torch's fused one is slow backwards on a CPU: compiled, a step takes 0.7 of its time.
        attn_implementation="eager",
    )
    return LlamaForCausalLM(llama)


def pretrain(
    config: TargetConfig, stream: np.ndarray, tokenizer: Path, folder: Path, seed: int
) -> LlamaForCausalLM:
    """Train until the budget is used up, resuming from `folder/state.pt` if it is there.

    At every save the model is written to `folder/model`, with the files of `tokenizer`.
    """
    torch.manual_seed(seed)
    model = build_target(config, len(AutoTokenizer.from_pretrained(tokenizer)))
    sizes = ("hidden_size", "intermediate_size", "layers", "heads", "kv_heads", "head_dim")
    inputs = {f"target.{size}": getattr(config, size) for size in sizes}
    forward = torch.compile(model, dynamic=False) if config.compile else model
    short, long = (
        TokenWindows(stream, length, seed)
        for length in (config.sequence_length, config.long_sequence_length)
    )

    def learn(step: int, progress: float) -> tuple[int, Figures]:
        windows = long if progress >= config.long_from else short
        rows, loss = config.tokens_per_step // windows.length, 0.0
        tokens = torch.from_numpy(np.stack([windows[step * rows + i] for i in range(rows)]))
        for part in tokens.split(max(1, config.micro_batch_tokens // windows.length)):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                mean = forward(input_ids=part, labels=part, use_cache=False).loss
            share = mean * len(part) / len(tokens)
            share.backward()
            loss += float(share.detach())
        return tokens[:, 1:].numel(), {"loss": loss}

    def save() -> Figures:
        save_llama_as_pangu(model, folder / "model")
        shutil.copytree(tokenizer, folder / "model", dirs_exist_ok=True)
        return {}

    TrainingRun(config, model, folder, inputs, Ranks()).train(learn, save)
    return model.eval()
