# SPDX-License-Identifier: Apache-2.0
"""An openPangu-architecture target and an EAGLE-3 head of random weights: for costs, not for τ."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

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
    target, head = folder / "target", folder / "head"
    save_llama_as_pangu(LlamaForCausalLM(config).bfloat16(), target, torch.bfloat16)
    _write_head(head, config)
    return target, head


def _write_head(folder: Path, target: object) -> None:
    hidden, vocab, layers = target.hidden_size, target.vocab_size, target.num_hidden_layers
    heads, kv_heads, head_dim = (
        target.num_attention_heads,
        target.num_key_value_heads,
        target.head_dim,
    )
    draft_vocab, intermediate = vocab // 2, target.intermediate_size

    def weight(*shape: int) -> torch.Tensor:
        return (torch.randn(shape) * 0.02).bfloat16()

    ones = torch.ones(hidden, dtype=torch.bfloat16)
    block = "midlayer."
    tensors = {
        "fc.weight": weight(hidden, 3 * hidden),
        f"{block}self_attn.q_proj.weight": weight(heads * head_dim, 2 * hidden),
        f"{block}self_attn.k_proj.weight": weight(kv_heads * head_dim, 2 * hidden),
        f"{block}self_attn.v_proj.weight": weight(kv_heads * head_dim, 2 * hidden),
        f"{block}self_attn.o_proj.weight": weight(hidden, heads * head_dim),
        f"{block}mlp.gate_proj.weight": weight(intermediate, hidden),
        f"{block}mlp.up_proj.weight": weight(intermediate, hidden),
        f"{block}mlp.down_proj.weight": weight(hidden, intermediate),
        f"{block}input_layernorm.weight": ones,
        f"{block}hidden_norm.weight": ones.clone(),
        f"{block}post_attention_layernorm.weight": ones.clone(),
        "norm.weight": ones.clone(),
        "lm_head.weight": weight(draft_vocab, hidden),
        "d2t": torch.arange(draft_vocab),
    }
    tensors["t2d"] = torch.zeros(vocab, dtype=torch.bool)
    tensors["t2d"][torch.arange(draft_vocab) * 2] = True
    folder.mkdir(parents=True)
    save_file(tensors, folder / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": hidden,
        "target_hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": 1,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "vocab_size": vocab,
        "draft_vocab_size": draft_vocab,
        "eagle_aux_hidden_state_layer_ids": [2, layers // 2, layers - 3],
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))
