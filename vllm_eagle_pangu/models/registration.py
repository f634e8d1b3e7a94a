# SPDX-License-Identifier: Apache-2.0
"""Makes transformers know openPangu Embedded's config, and vLLM build its model with taps.

transformers has no such config: openPangu checkpoints carry their own in `auto_map`. This one reads
the same `config.json`, so no remote code need be trusted; a user who does pass
`trust_remote_code=True` still gets the checkpoint's own. Without taps nothing else changes.
"""

from transformers import AutoConfig, LlamaConfig

PANGU_ARCHITECTURE = "PanguEmbeddedForCausalLM"
PANGU_MODEL_TYPE = "PanguEmbedded"
MODEL_CLASS = "vllm_eagle_pangu.models.openpangu:PanguEmbeddedForCausalLM"
VLLM_MODULE = "vllm.model_executor.models.openpangu"


class PanguEmbeddedConfig(LlamaConfig):
    """Config of a dense openPangu model, whose block is Llama's; defaults: openPangu-Embedded-7B's.

    `bias` is the bias of q, k, v and o together. `head_dim` None means
    `hidden_size // num_attention_heads`. A top-level `rope_theta` in `config.json` ends up in
    `rope_parameters`, where transformers 5 and vLLM look for it.
    """

    model_type = PANGU_MODEL_TYPE
    default_theta = 16_000_000.0

    vocab_size: int = 153376
    intermediate_size: int = 12800
    num_hidden_layers: int = 34
    num_key_value_heads: int | None = 8
    max_position_embeddings: int = 32768
    rms_norm_eps: float = 1e-5
    pad_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 45892
    bias: bool = True


def register_models() -> None:
    """Register config and model. Silent; imports no model code; may be called repeatedly.

    Only vLLM's own entry is replaced: if another plugin has put its openPangu there, that stays.
    """
    from vllm import ModelRegistry

    AutoConfig.register(PANGU_MODEL_TYPE, PanguEmbeddedConfig, exist_ok=True)
    registered = ModelRegistry.models.get(PANGU_ARCHITECTURE)
    if getattr(registered, "module_name", None) != VLLM_MODULE:
        return
    # Taken out first, because vLLM logs when an entry is overwritten.
    del ModelRegistry.models[PANGU_ARCHITECTURE]
    ModelRegistry.register_model(PANGU_ARCHITECTURE, MODEL_CLASS)
