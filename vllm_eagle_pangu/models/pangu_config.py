# SPDX-License-Identifier: Apache-2.0
"""The Hugging Face config class of openPangu Embedded, so that no remote code need be trusted.

transformers has none: openPangu checkpoints carry their own in `auto_map`. This one reads the
same `config.json`. A user who does pass `trust_remote_code=True` still gets the checkpoint's own.
"""

from __future__ import annotations

from transformers import AutoConfig
from transformers.configuration_utils import PretrainedConfig
from transformers.modeling_rope_utils import RopeParameters

from vllm_eagle_pangu.models.pangu_as_llama import PANGU_MODEL_TYPE


class PanguEmbeddedConfig(PretrainedConfig):
    """Config of a dense openPangu model; the defaults are openPangu-Embedded-7B's.

    `bias` is the bias of q, k, v and o together. `head_dim` None means
    `hidden_size // num_attention_heads`. A top-level `rope_theta` in `config.json` ends up in
    `rope_parameters`, where transformers 5 and vLLM look for it.
    """

    model_type = PANGU_MODEL_TYPE
    keys_to_ignore_at_inference = ("past_key_values",)
    default_theta = 16_000_000.0

    vocab_size: int = 153376
    hidden_size: int = 4096
    intermediate_size: int = 12800
    num_hidden_layers: int = 34
    num_attention_heads: int = 32
    num_key_value_heads: int | None = 8
    head_dim: int | None = None
    hidden_act: str = "silu"
    max_position_embeddings: int = 32768
    initializer_range: float = 0.02
    rms_norm_eps: float = 1e-5
    use_cache: bool = True
    pad_token_id: int | None = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 45892
    tie_word_embeddings: bool = False
    rope_parameters: RopeParameters | dict | None = None
    bias: bool = True
    mlp_bias: bool = False
    attention_dropout: float = 0.0

    def __post_init__(self, **kwargs):
        if self.num_key_value_heads is None:
            self.num_key_value_heads = self.num_attention_heads
        if self.head_dim is None:
            self.head_dim = self.hidden_size // self.num_attention_heads
        super().__post_init__(**kwargs)


def register_config() -> None:
    """Teach `AutoConfig` the model type "PanguEmbedded". May be called any number of times."""
    AutoConfig.register(PANGU_MODEL_TYPE, PanguEmbeddedConfig, exist_ok=True)
