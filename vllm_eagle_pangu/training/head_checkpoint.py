# SPDX-License-Identifier: Apache-2.0
"""Write and read heads in the format that vLLM's `eagle3` method loads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from vllm_eagle_pangu.models.pangu_as_llama import WEIGHTS_FILE
from vllm_eagle_pangu.training.draft_vocabulary import DraftVocabulary
from vllm_eagle_pangu.training.head import EagleHead, HeadShape

ARCHITECTURE = "LlamaForCausalLMEagle3"


def head_config(shape: HeadShape, dtype: str) -> dict[str, Any]:
    """The head's `config.json`."""
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "llama",
        "hidden_size": shape.hidden_size,
        "target_hidden_size": shape.target_hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_theta": shape.rope_theta,
        "max_position_embeddings": shape.max_positions,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "vocab_size": shape.vocab_size,
        "draft_vocab_size": shape.draft_vocab_size,
        "eagle_aux_hidden_state_layer_ids": list(shape.taps),
        "norm_before_residual": False,
        "norm_output": False,
        "torch_dtype": dtype,
    }


def save_head(
    head: EagleHead,
    vocabulary: DraftVocabulary,
    folder: Path,
    dtype: torch.dtype = torch.bfloat16,
) -> None:
    """Write config.json and model.safetensors; the embedding is left out, it is the target's."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        name: tensor.detach().to("cpu", dtype).contiguous()
        for name, tensor in head.state_dict().items()
    }
    weights.update(d2t=vocabulary.d2t, t2d=vocabulary.t2d)
    save_file(weights, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    (folder / WEIGHTS_FILE).chmod(0o644)  # safetensors writes for the owner alone
    config = head_config(head.shape, str(dtype).removeprefix("torch."))
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def load_head(
    folder: Path, dtype: torch.dtype = torch.float32
) -> tuple[EagleHead, DraftVocabulary]:
    """Read what `save_head` wrote."""
    config = json.loads((folder / "config.json").read_text())
    weights = load_file(folder / WEIGHTS_FILE)
    d2t, _ = weights.pop("d2t"), weights.pop("t2d")
    vocabulary = DraftVocabulary(d2t + torch.arange(len(d2t)), config["vocab_size"])
    shape = HeadShape(
        hidden_size=config["hidden_size"],
        target_hidden_size=config["target_hidden_size"],
        intermediate_size=config["intermediate_size"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        vocab_size=config["vocab_size"],
        draft_vocab_size=config["draft_vocab_size"],
        taps=tuple(config["eagle_aux_hidden_state_layer_ids"]),
        rope_theta=config["rope_theta"],
        max_positions=config["max_position_embeddings"],
        rms_norm_eps=config["rms_norm_eps"],
    )
    head = EagleHead(shape)
    head.load_state_dict(weights)
    return head.to(dtype).eval(), vocabulary
