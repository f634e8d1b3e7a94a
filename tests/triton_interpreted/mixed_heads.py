# SPDX-License-Identifier: Apache-2.0
"""The tiny Llama with a second KV head in one layer, a copy of the first: the same function."""

import copy
import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from vllm.model_executor.models.llama import LlamaDecoderLayer, LlamaForCausalLM
from vllm.model_executor.models.registry import ModelRegistry

from ..tiny_pair import write_tiny_llama

NAME = "MixedHeadsLlamaForCausalLM"
LAYER = "model.layers.1"


class MixedHeadsLayer(LlamaDecoderLayer):
    def __init__(self, vllm_config: Any, prefix: str = "", config: Any = None, **rest: Any) -> None:
        if prefix == LAYER:
            config = copy.copy(config or vllm_config.model_config.hf_config)
            config.num_key_value_heads = 2
        super().__init__(vllm_config, prefix, config, **rest)


class MixedHeadsLlamaForCausalLM(LlamaForCausalLM):
    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix, layer_type=MixedHeadsLayer)


def write_mixed_heads(folder: Path) -> Path:
    """Its checkpoint; vLLM knows the architecture from here on."""
    ModelRegistry.register_model(NAME, MixedHeadsLlamaForCausalLM)
    write_tiny_llama(folder)
    weights = load_file(folder / "model.safetensors")
    for name in ("k_proj", "v_proj"):
        key = f"{LAYER}.self_attn.{name}.weight"
        weights[key] = weights[key].repeat(2, 1)
    save_file(weights, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": [NAME]}))
    return folder
