# SPDX-License-Identifier: Apache-2.0
"""The options that EAGLE-3 heads are trained with: which of them trees draft with, and how.

Norms, residuals and the number of layers are the business of the head's own `forward`. A window
reaches the tree, whose rows count towards it: `TreeRows.within`.
"""

import re
from typing import TYPE_CHECKING

from vllm_eagle_pangu.config import refusal
from vllm_eagle_pangu.engine.target_fit import odd_scores

if TYPE_CHECKING:
    from transformers import PretrainedConfig
    from vllm.config import VllmConfig

_FULL, _SLIDING = "full_attention", "sliding_attention"
_LAYER = re.compile(r"layers\.(\d+)\.")
# The norms before fc: the key of config.json that asks for them, and how their weights start.
_NORMS = {"norm_before_fc": "input_norm.", "fc_norm": "fc_norm."}


def check_layers(vllm_config: "VllmConfig") -> None:
    """Refuse a head with layers that cannot attend a tree's rows. Raises ValueError.

    `sliding_window` without `layer_types` passes: vLLM's heads overlook it, and so do trees.
    """
    draft = vllm_config.speculative_config.draft_model_config
    head = draft.hf_config
    for key, value, problem in odd_scores(head):
        raise refusal(key, value, f"{draft.model}: {problem}", "use another head")
    kinds = list(getattr(head, "layer_types", None) or [])
    if not kinds:
        return
    if not set(kinds) <= {_FULL, _SLIDING}:
        raise refusal(
            "layer_types",
            kinds,
            f"trees are drafted by layers of {_FULL} or {_SLIDING}",
            "use another head",
        )
    window = getattr(head, "sliding_window", None)
    if _SLIDING in kinds and not window:
        raise refusal(
            "sliding_window",
            window,
            f"layer_types of the head names {_SLIDING}",
            "name the window that the head was trained with in its config.json",
        )
    one_group = vllm_config.scheduler_config.disable_hybrid_kv_cache_manager
    if len(set(kinds)) > 1 and not one_group:
        raise refusal(
            "layer_types",
            kinds,
            "vLLM keeps layers with and without a window in KV cache groups of their own, "
            "and drafts from one group",
            "pass --disable-hybrid-kv-cache-manager",
        )


def check_layer_weights(shapes: dict[str, tuple[int, ...]], head: "PretrainedConfig") -> None:
    """Refuse weights that the config does not ask for, or lacks: vLLM drops or invents those.

    `shapes` of the checkpoint's tensors, without "model." in front. Raises ValueError.
    """
    eagle_config = getattr(head, "eagle_config", None) or {}
    for key, weights in _NORMS.items():
        said = getattr(head, key, False)
        # vLLM looks for this one key in both places.
        asked = bool(eagle_config.get(key, said) if key == "norm_before_fc" else said)
        if asked != any(name.startswith(weights) for name in shapes):
            raise refusal(
                key,
                asked,
                f"the checkpoint has {'no weights' if asked else 'weights'} {weights}*",
                f'set "{key}" in the head\'s config.json as it was trained',
            )
    found = {int(match[1]) for name in shapes if (match := _LAYER.match(name))}
    found |= {0 for name in shapes if name.startswith("midlayer.")}
    if found and found != set(range(head.num_hidden_layers)):
        raise refusal(
            "num_hidden_layers",
            head.num_hidden_layers,
            f"the checkpoint has the layers {sorted(found)}",
            "mend num_hidden_layers in the head's config.json",
        )
