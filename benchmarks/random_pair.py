# SPDX-License-Identifier: Apache-2.0
"""An openPangu-architecture target and an EAGLE-3 head of random weights: for costs, not for τ."""

from pathlib import Path

import torch

# Millions of weights to (hidden, layers, heads, KV heads, intermediate, vocabulary).
SIZES = {
    30: (512, 6, 8, 2, 1408, 8192),
    300: (1024, 16, 16, 4, 3072, 32768),
}


def write_random_pair(folder: Path, millions: int) -> tuple[Path, Path]:
    """Write both checkpoints under `folder`; returns (target, head).

    Raises:
        ValueError: `millions` is not in SIZES.
    """
    if millions not in SIZES:
        raise ValueError(f"--random {millions}: no such size; use one of {sorted(SIZES)}")
    from transformers import LlamaConfig, LlamaForCausalLM

    from vllm_eagle_pangu.models.pangu_as_llama import save_llama_as_pangu
    from vllm_eagle_pangu.training.draft_vocabulary import DraftVocabulary
    from vllm_eagle_pangu.training.head import EagleHead, HeadShape
    from vllm_eagle_pangu.training.head_checkpoint import save_head

    hidden, layers, heads, kv_heads, intermediate, vocab = SIZES[millions]
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=hidden // heads,
        intermediate_size=intermediate,
        vocab_size=vocab,
        max_position_embeddings=4096,
        attention_bias=True,
        tie_word_embeddings=False,
    )
    save_llama_as_pangu(
        LlamaForCausalLM(config).bfloat16(), folder / "target", dtype=torch.bfloat16
    )
    shape = HeadShape(
        hidden_size=hidden,
        target_hidden_size=hidden,
        intermediate_size=intermediate,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=hidden // heads,
        vocab_size=vocab,
        draft_vocab_size=vocab // 2,
        taps=(2, layers // 2, layers - 3),
        rope_theta=10000.0,
        max_positions=4096,
        rms_norm_eps=1e-6,
    )
    every_second = DraftVocabulary(2 * torch.arange(vocab // 2), vocab)
    save_head(EagleHead(shape), every_second, folder / "head")
    return folder / "target", folder / "head"
