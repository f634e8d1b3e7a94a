# SPDX-License-Identifier: Apache-2.0
"""openPangu Embedded read as a Llama: the same block, other names in the config.

openPangu's dense block (`vllm/model_executor/models/openpangu.py`) is Llama's with biases on
q, k, v and o and none in the MLP. The weights even have the same names, so only the
configuration needs translating. With it transformers' `LlamaForCausalLM` trains and runs
an openPangu model without remote code.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from vllm_eagle_pangu.checked import refusal
from vllm_eagle_pangu.models.registration import (
    PANGU_ARCHITECTURE,
    PANGU_MODEL_TYPE,
    PanguEmbeddedConfig,
)

WEIGHTS_FILE = "model.safetensors"
SUPPORTED_ARCHITECTURES = (PANGU_ARCHITECTURE, "LlamaForCausalLM", "Qwen3ForCausalLM")
_NOT_PANGU = "has no openPangu equivalent"
# Keys of blocks that Llama's is not.
_UNLIKE_LLAMA = (
    *("n_routed_experts", "sandwich_norm", "param_sink_number"),
    *("kv_lora_rank", "rope_scaling"),
)


def llama_config_from_pangu(config: dict[str, Any]) -> LlamaConfig:
    """Translate an openPangu Embedded `config.json` into transformers' Llama config.

    Raises ValueError for what Llama cannot compute (experts, sandwich norms, sinks), and for biases
    that it cannot place.
    """
    for key in _UNLIKE_LLAMA:
        if config.get(key):
            mend = "only dense openPangu Embedded models can be read as a Llama"
            raise refusal(key, config[key], "is not in Llama's block", mend)
    bias = bool(config.get("attention_bias") or config.get("bias"))
    if bool(config.get("qkv_bias", bias)) != bias:
        problem = f"differs from bias={bias!r}, and Llama has q, k, v and o alike"
        raise refusal("qkv_bias", config["qkv_bias"], problem, "drop qkv_bias")
    return PanguEmbeddedConfig.from_dict(config, attention_bias=bias)


def pangu_config_from_llama(config: LlamaConfig, dtype: str = "bfloat16") -> dict[str, Any]:
    """Translate a Llama config into the `config.json` of an openPangu Embedded checkpoint.

    Raises ValueError for scaled rotary embeddings or MLP biases, which openPangu does not have.
    """
    rope = dict(config.rope_parameters or {})
    if rope.get("rope_type", "default") != "default":
        raise refusal("rope_type", rope["rope_type"], _NOT_PANGU, "use rope_type 'default'")
    if config.mlp_bias:
        raise refusal("mlp_bias", True, _NOT_PANGU, "set mlp_bias to False")
    renamed = ("attention_bias", "mlp_bias", "rope_parameters", "dtype")
    shared = {key: value for key, value in config.to_diff_dict().items() if key not in renamed}
    return shared | {
        "architectures": [PANGU_ARCHITECTURE],
        "model_type": PANGU_MODEL_TYPE,
        "bias": bool(config.attention_bias),
        "rope_theta": float(rope.get("rope_theta", 10000.0)),
        "torch_dtype": dtype,
    }


def load_target(folder: str | Path, dtype: torch.dtype = torch.bfloat16) -> Any:
    """Load a target: openPangu Embedded (as a Llama), Llama or Qwen3, a Hugging Face folder.

    Raises ValueError where there is no config.json, or it is of another architecture; of openPangu,
    too, where Llama cannot compute it, and where the weights do not match the config.
    """
    path = Path(folder) / "config.json"
    if not path.exists():
        raise refusal("target", str(folder), "has no config.json", "name a Hugging Face folder")
    config = json.loads(path.read_text())
    architecture = (config.get("architectures") or ["none"])[0]
    if architecture not in SUPPORTED_ARCHITECTURES:
        mend = f"heads can be trained for {', '.join(SUPPORTED_ARCHITECTURES)}"
        raise refusal("target", str(folder), f"is a {architecture}", mend)
    if architecture != PANGU_ARCHITECTURE:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    llama = llama_config_from_pangu(config)
    model, found = LlamaForCausalLM.from_pretrained(
        folder, config=llama, dtype=dtype, output_loading_info=True
    )
    missing, unexpected = (sorted(found[f"{which}_keys"]) for which in ("missing", "unexpected"))
    if missing or unexpected:
        sides = f"missing {missing[:4]}, unexpected {unexpected[:4]}"
        problem = f"weights do not match config.json ({sides})"
        raise refusal("target", str(folder), problem, "check 'bias' and the layer count")
    return model.eval()


def text_logits(
    folder: str | Path, dtype: torch.dtype = torch.float32
) -> Callable[[list[int]], torch.Tensor]:
    """What a target says of a text after each of its tokens, `[N, V] float32`, in transformers.

    Raises as `load_target` does.
    """
    model = load_target(folder, dtype)
    model.set_attn_implementation("eager")

    @torch.no_grad()
    def logits(tokens: list[int]) -> torch.Tensor:
        return model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].float()

    return logits


def save_llama_as_pangu(
    model: LlamaForCausalLM, folder: str | Path, dtype: torch.dtype = torch.bfloat16
) -> None:
    """Write config.json and model.safetensors of an openPangu Embedded checkpoint."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = pangu_config_from_llama(model.config, dtype=str(dtype).removeprefix("torch."))
    weights = {
        name: tensor.detach().to("cpu", dtype).contiguous()
        for name, tensor in model.state_dict().items()
        if not (config["tie_word_embeddings"] and name == "lm_head.weight")
    }
    save_file(weights, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    (folder / WEIGHTS_FILE).chmod(0o644)  # safetensors writes for the owner alone
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
