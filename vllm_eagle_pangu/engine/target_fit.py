# SPDX-License-Identifier: Apache-2.0
"""Which targets can verify a tree: causal decoders with ordinary attention and EAGLE-3 taps."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from vllm_eagle_pangu.config import refusal

if TYPE_CHECKING:
    from transformers import PretrainedConfig
    from vllm.config import ModelConfig

_ANOTHER = 'choose another target, or vLLM\'s own "method": "eagle3"'

# Flags of vLLM's ModelConfig that a target must not raise, and what each one means here.
_FLAGS = {
    "use_mla": "multi-head latent attention (MLA) has no tree attention",
    "is_hybrid": "layers with a recurrent state cannot fork into branches",
    "has_inner_state": "layers with a recurrent state cannot fork into branches",
    "is_attention_free": "a model without attention cannot mask a tree",
    "is_encoder_decoder": "encoder-decoder models are not supported",
    "is_diffusion": "diffusion models have no next token to draft",
    "is_mm_prefix_lm": "its image tokens see each other in both directions",
    "uses_mrope": "multimodal rotary positions (M-RoPE) have no tree depth",
    "rswa_window": "sliding-window attention has no tree attention",
    "uses_alibi": "ALiBi's distances have no tree depth",
}

_NO_WINDOW = "sliding-window attention has no tree attention"
_NO_SINKS = "tree attention knows no attention sinks"
# Keys of a Hugging Face text config that say that attention is more than softmax(QK)V.
_ODD_SCORES = {
    "interleaved_sliding_window": _NO_WINDOW,
    "attn_logit_softcapping": "tree attention does not cap attention scores",
    "attention_sinks": _NO_SINKS,
    "param_sink_number": _NO_SINKS,
    "add_full_attention_sink_bias": _NO_SINKS,
    "add_swa_attention_sink_bias": _NO_SINKS,
    "swa_attention_sink_enabled": _NO_SINKS,
}


def check_target(model_config: "ModelConfig") -> None:
    """Refuse a target whose layers cannot attend a tree, or that exposes no hidden states.

    `model_config` is vLLM's. Raises ValueError.
    """
    if model_config.runner_type != "generate":
        raise refusal(
            "runner",
            model_config.runner_type,
            "only text generation drafts tokens",
            "set runner to generate, or remove speculative_config",
        )
    for flag, problem in _FLAGS.items():
        # vLLM 0.23 lacks the flags of features that it does not have.
        if getattr(model_config, flag, False):
            raise refusal("model", model_config.model, f"{problem} ({flag})", _ANOTHER)
    config = model_config.hf_text_config
    for key, value, problem in (*_windows(config), *odd_scores(config)):
        raise refusal(key, value, f"{model_config.model}: {problem}", _ANOTHER)
    _check_taps(model_config)


def _windows(config: "PretrainedConfig") -> Iterator[tuple[str, object, str]]:
    """The keys of a Hugging Face text config that name a window: key, value, problem."""
    layers = getattr(config, "layer_types", None) or []
    windowed = sorted({kind for kind in layers if "sliding" in kind or "chunked" in kind})
    if windowed:
        yield "layer_types", windowed, _NO_WINDOW
    window = getattr(config, "sliding_window", None)
    # Qwen configs keep the number although no layer uses it.
    used = not layers and getattr(config, "use_sliding_window", True)
    if window is not None and used:
        yield "sliding_window", window, _NO_WINDOW


def odd_scores(config: "PretrainedConfig") -> Iterator[tuple[str, object, str]]:
    """What trees honour neither in targets nor in heads: key, value, problem."""
    chunk = getattr(config, "attention_chunk_size", None)
    if chunk and not getattr(config, "layer_types", None):
        yield "attention_chunk_size", chunk, "chunked attention has no tree attention"
    for key, problem in _ODD_SCORES.items():
        value = getattr(config, key, None)
        if value:
            yield key, value, problem


def _check_taps(model_config: "ModelConfig") -> None:
    from vllm.model_executor.models.interfaces import supports_eagle3

    architectures = model_config.architectures
    model_class, _ = model_config.registry.resolve_model_cls(architectures, model_config)
    if not supports_eagle3(model_class):
        raise refusal(
            "model",
            model_config.model,
            f"vLLM's {model_class.__name__} does not expose the hidden states that EAGLE-3 taps",
            "choose a target that vLLM's eagle3 method serves",
        )
