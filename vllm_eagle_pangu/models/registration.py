# SPDX-License-Identifier: Apache-2.0
"""Makes vLLM know openPangu's config and build it with taps. Without taps nothing else changes."""

from __future__ import annotations

from vllm_eagle_pangu.models.pangu_as_llama import PANGU_ARCHITECTURE
from vllm_eagle_pangu.models.pangu_config import register_config

MODEL_CLASS = "vllm_eagle_pangu.models.openpangu:PanguEmbeddedForCausalLM"
VLLM_MODULE = "vllm.model_executor.models.openpangu"


def register_models() -> None:
    """Register config and model. Silent; imports no model code; may be called repeatedly.

    Only vLLM's own entry is replaced: if another plugin has put its openPangu there, that stays.
    """
    from vllm import ModelRegistry

    register_config()
    registered = ModelRegistry.models.get(PANGU_ARCHITECTURE)
    if getattr(registered, "module_name", None) != VLLM_MODULE:
        return
    # Taken out first, because vLLM logs when an entry is overwritten.
    del ModelRegistry.models[PANGU_ARCHITECTURE]
    ModelRegistry.register_model(PANGU_ARCHITECTURE, MODEL_CLASS)
