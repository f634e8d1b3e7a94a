# SPDX-License-Identifier: Apache-2.0
"""The check, once target and head are loaded, that tree attention reaches each of their layers."""

from collections.abc import Collection
from typing import TYPE_CHECKING

from vllm.config import get_layers_from_vllm_config
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

from vllm_eagle_pangu.config import refusal
from vllm_eagle_pangu.engine.attention import TreeAttentionMixin

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def require_tree_attention(vllm_config: "VllmConfig", draft_layers: Collection[str]) -> None:
    """Refuse attention layers that run on another implementation than ours.

    vLLM chooses a backend layer by layer while it builds a model, and the head's apart from the
    target's. `draft_layers`: names of the head's.

    Raises:
        ValueError: which layer, the backend that it got, and the mend.
    """
    layers = get_layers_from_vllm_config(vllm_config, AttentionLayerBase)
    for name, layer in layers.items():
        impl = getattr(layer, "impl", None)
        if isinstance(impl, TreeAttentionMixin):
            continue
        whose, option = "target", "the option --attention-backend"
        if name in draft_layers:
            whose, option = "head", '"attention_backend" in speculative_config'
        backend = layer.get_attn_backend().get_name()
        raise refusal(
            "attention_backend",
            backend,
            f"the {whose}'s layer {name} was built with vLLM's {type(impl).__name__}, on which "
            "tree attention does not stand",
            f"name a backend that it stands on with {option} (docs/refusals.md), or use "
            '"method": "eagle3"',
        )
