# SPDX-License-Identifier: Apache-2.0
"""Every name of vLLM's that `engine/`, `compat/` and `models/` touch, file by file.

Read by tests/plugin/test_seam_table.py alone, which names what an installed vLLM lacks, what our
files touch and this table lacks, and what this table has and our files no longer touch.
Tables of options that we refuse are elsewhere: see `refusals.py`, `target_fit.py`.
"""

from dataclasses import replace

from vllm_eagle_pangu.compat import SUPPORTED
from vllm_eagle_pangu.compat.seam_entry import Kind, Seam

_ARGS = "vllm.engine.arg_utils:EngineArgs"
_ATTENTION = "vllm.model_executor.layers.attention:Attention"
_ATTENTION_CONFIG = "vllm.config:AttentionConfig"
_BACKENDS = "vllm.v1.attention.backend"
_BACKEND_NAMES = "vllm.v1.attention.backends.registry:AttentionBackendEnum"
_BATCH = "vllm.v1.worker.gpu_input_batch:InputBatch"
_BUFFER = "vllm.v1.utils:CpuGpuBuffer"
_CACHE_CONFIG = "vllm.config:CacheConfig"
_COMMON = "vllm.v1.attention.backend:CommonAttentionMetadata"
_CPU_ATTN = "vllm.v1.attention.backends.cpu_attn"
_CUSTOM_OPS = "vllm._custom_ops"
_FLASH_ATTN = "vllm.v1.attention.backends.flash_attn"
_GROUP = "vllm.v1.kv_cache_interface:KVCacheGroupSpec"
_HEAD = "vllm.model_executor.models.llama_eagle3"
_KV_CACHE = "vllm.v1.kv_cache_interface:KVCacheConfig"
_MODEL_CONFIG = "vllm.config:ModelConfig"
_OPS = "vllm._custom_ops:torch.ops._C"
_PANGU = "vllm.model_executor.models.openpangu"
_PLATFORM = "vllm.platforms.interface:Platform"
_PROPOSER = "vllm.v1.spec_decode.eagle:EagleProposer"
_REQUEST = "vllm.v1.request:Request"
_REQUEST_STATE = "vllm.v1.worker.gpu_input_batch:CachedRequestState"
_RUNNER = "vllm.v1.worker.gpu_model_runner:GPUModelRunner"
_SAMPLING = "vllm.v1.sample.metadata:SamplingMetadata"
_SAMPLING_PARAMS = "vllm.sampling_params:SamplingParams"
_SCHEDULED = "vllm.v1.core.sched.output:SchedulerOutput"
_SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"
_SCHEDULER_CONFIG = "vllm.config:SchedulerConfig"
_SPECULATIVE = "vllm.config:SpeculativeConfig"
_TABLE = "vllm.v1.worker.block_table:BlockTable"
_TABLES = "vllm.v1.worker.block_table:MultiGroupBlockTable"
_THINKING = "vllm.v1.sample.thinking_budget_state:ThinkingBudgetStateHolder"
_TRITON_ATTN = "vllm.v1.attention.backends.triton_attn"
_VLLM_CONFIG = "vllm.config:VllmConfig"


def _of(
    owner: str,
    has: str = "",
    *,
    made: str = "",
    fields: str = "",
    parameters: str = "",
    line: str | None = None,
    platform: str | None = None,
) -> tuple[Seam, ...]:
    """Names of one owner, apart by blanks; `has` are of kind NAME."""
    kinds: tuple[tuple[Kind, str], ...] = (
        ("NAME", has),
        ("MADE", made),
        ("FIELD", fields),
        ("PARAMETER", parameters),
    )
    lines = SUPPORTED if line is None else (line,)
    return tuple(
        Seam(owner, name, kind, "", lines, platform)
        for kind, names in kinds
        for name in names.split()
    )


def _in(
    file: str, *groups: tuple[Seam, ...], line: str | None = None, platform: str | None = None
) -> tuple[Seam, ...]:
    """What a file uses; `line` and `platform` where the whole file is for one."""
    return tuple(
        replace(
            seam,
            used_in=file,
            lines=seam.lines if line is None else (line,),
            platform=platform or seam.platform,
        )
        for group in groups
        for seam in group
    )


# vLLM's own op, with which whoever writes pages writes them.
_CACHE_WRITES = (
    *_of(f"{_CPU_ATTN}:CPUAttentionBackendImpl", "do_kv_cache_update", line="0.32", platform="cpu"),
    *_of(f"{_FLASH_ATTN}:FlashAttentionImpl", "do_kv_cache_update", platform="cuda"),
    *_of(f"{_TRITON_ATTN}:TritonAttentionImpl", "do_kv_cache_update", platform="cuda"),
)


SEAMS: tuple[Seam, ...] = (
    # the configuration, in every process
    *_in(
        "compat/__init__.py",
        _of("vllm", "__version__"),
        _of("vllm.platforms", "current_platform"),
        _of(_PLATFORM, made="device_type"),
    ),
    *_in(
        "compat/engine_args.py",
        _of("vllm.config", "SpeculativeConfig VllmConfig"),
        _of("vllm.engine.arg_utils", "EngineArgs"),
        _of("vllm.platforms", "current_platform"),
        _of(_PLATFORM, made="device_type"),
        _of(_VLLM_CONFIG, "use_v2_model_runner"),
        _of(_VLLM_CONFIG, fields="parallel_config scheduler_config"),
        _of("vllm.config:ParallelConfig", fields="worker_cls"),
        _of(_SCHEDULER_CONFIG, fields="scheduler_cls"),
        _of(_ARGS, "create_speculative_config create_engine_config"),
        _of(_ARGS, fields="model speculative_config async_scheduling"),
        _of(
            _SPECULATIVE,
            fields="target_model_config target_parallel_config draft_model_config "
            "draft_parallel_config",
        ),
    ),
    *_in(
        "compat/method_choice.py",
        _of(_ARGS, fields="speculative_config"),
        _of(_ARGS, fields="spec_method spec_model spec_tokens"),
    ),
    *_in(
        "compat/unsupported.py",
        _of("vllm", "__version__"),
        _of("vllm.engine.arg_utils", "EngineArgs"),
        _of(_ARGS, "create_engine_config"),
    ),
    *_in(
        "compat/platform_parts.py",
        _of("vllm.v1.attention.backends.registry", "AttentionBackendEnum register_backend"),
        _of("vllm.v1.attention.backends.registry:AttentionBackendEnum", "get_path"),
        _of("vllm.v1.attention", "selector"),
        _of("vllm.v1.attention.selector", "_cached_get_attn_backend"),
        _of("vllm.v1.attention.selector:_cached_get_attn_backend", "cache_clear"),
    ),
    *_in(
        "compat/vllm_0_23.py",
        _of(
            "vllm.v1.attention.backends.registry:AttentionBackendEnum",
            "CPU_ATTN FLASH_ATTN TRITON_ATTN",
        ),
        line="0.23",
    ),
    *_in(
        "compat/vllm_0_32.py",
        _of(
            "vllm.v1.attention.backends.registry:AttentionBackendEnum",
            "CPU_ATTN FLASH_ATTN TRITON_ATTN",
        ),
        line="0.32",
    ),
    *_in(
        "engine/refusals.py",
        _of("vllm.config", "VllmConfig"),
        _of("vllm.engine.arg_utils", "EngineArgs"),
        _of("vllm", "envs"),
        _of("vllm.envs", "VLLM_USE_V2_MODEL_RUNNER"),
        _of("vllm.platforms", "current_platform"),
        _of(_PLATFORM, "is_rocm get_device_capability", made="device_type"),
        _of("vllm.platforms.interface:DeviceCapability", "major"),
        _of("vllm.utils.torch_utils", "kv_cache_dtype_str_to_dtype"),
        _of("vllm.v1.attention.backends.registry", "AttentionBackendEnum"),
        _of(
            _VLLM_CONFIG,
            fields="attention_config cache_config kv_transfer_config model_config quant_config "
            "scheduler_config speculative_config",
        ),
        _of(_ATTENTION_CONFIG, fields="backend"),
        _of(_ATTENTION_CONFIG, fields="backend_per_kind", line="0.32"),
        _of(_SPECULATIVE, fields="attention_backend"),
        _of(_SPECULATIVE, fields="kv_cache_dtype", line="0.32"),
        _of("vllm.config:KVTransferConfig", fields="kv_connector"),
        _of(_SCHEDULER_CONFIG, fields="max_num_batched_tokens max_num_scheduled_tokens"),
        _of(_CACHE_CONFIG, fields="cache_dtype"),
        _of(_MODEL_CONFIG, fields="dtype"),
        _of(
            "vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors:CompressedTensorsConfig",
            made="kv_cache_scheme",
        ),
    ),
    *_in(
        "engine/target_fit.py",
        _of("vllm.config", "ModelConfig"),
        _of("vllm.model_executor.models.interfaces", "supports_eagle3"),
        _of(_MODEL_CONFIG, "architectures registry"),
        _of(_MODEL_CONFIG, fields="model", made="hf_text_config runner_type"),
        _of("vllm.model_executor.models.registry:ModelRegistry", "resolve_model_cls"),
    ),
    *_in(
        "engine/head_fit.py",
        _of("vllm.config", "ModelConfig VllmConfig"),
        _of(_VLLM_CONFIG, fields="model_config speculative_config"),
        _of(_SPECULATIVE, fields="draft_model_config"),
        _of(
            _MODEL_CONFIG,
            "architectures get_hidden_size get_total_num_hidden_layers get_vocab_size",
            fields="model",
            made="hf_config _model_info",
        ),
        _of("vllm.model_executor.models.registry:_ModelInfo", fields="architecture"),
        _of(_HEAD, "Eagle3LlamaForCausalLM"),
        _of("vllm.model_executor.models.qwen3_eagle3", "Eagle3Qwen3ForCausalLM", line="0.32"),
    ),
    *_in(
        "engine/head_folder.py",
        _of("vllm", "ModelRegistry"),
        _of("vllm:ModelRegistry", "get_supported_archs"),
    ),
    *_in(
        "engine/head_layers.py",
        _of("vllm.config", "VllmConfig"),
        _of(_VLLM_CONFIG, fields="scheduler_config speculative_config"),
        _of(_SPECULATIVE, fields="draft_model_config"),
        _of(_MODEL_CONFIG, fields="model", made="hf_config"),
        _of(_SCHEDULER_CONFIG, fields="disable_hybrid_kv_cache_manager"),
    ),
    *_in(
        "engine/head_length.py",
        _of("vllm.config", "SpeculativeConfig VllmConfig"),
        _of(_VLLM_CONFIG, fields="model_config speculative_config"),
        _of(_SPECULATIVE, fields="draft_model_config max_model_len target_model_config"),
        _of(_MODEL_CONFIG, fields="max_model_len", made="hf_config"),
    ),
    # the scheduler
    *_in(
        "engine/scheduler.py",
        _of("vllm.v1.core.sched.output", "SchedulerOutput"),
        _of("vllm.v1.core.sched.scheduler", "Scheduler"),
        _of("vllm.v1.outputs", "DraftTokenIds"),
        _of("vllm.v1.request", "Request"),
        _of(
            _SCHEDULER,
            "update_draft_token_ids _update_after_schedule",
            made="kv_cache_config kv_cache_manager max_model_len max_num_running_reqs "
            "max_num_scheduled_tokens num_lookahead_tokens num_spec_tokens requests "
            "running scheduler_config vllm_config",
        ),
        _of(_SCHEDULER, made="dynamic_sd_lookup", line="0.32"),
        _of(_SCHEDULER_CONFIG, fields="max_num_batched_tokens"),
        _of("vllm.v1.outputs:DraftTokenIds", fields="req_ids"),
        _of(
            _REQUEST,
            "num_output_tokens num_tokens",
            made="max_tokens num_computed_tokens request_id spec_token_ids",
        ),
        _of(
            _SCHEDULED,
            fields="num_scheduled_tokens scheduled_cached_reqs scheduled_spec_decode_tokens "
            "total_num_scheduled_tokens",
        ),
        _of(
            "vllm.v1.core.sched.output:CachedRequestData",
            fields="new_block_ids req_ids resumed_req_ids",
        ),
        _of("vllm.v1.core.kv_cache_manager:KVCacheManager", "allocate_slots get_blocks"),
        _of(
            "vllm.v1.core.kv_cache_manager:KVCacheManager.allocate_slots",
            parameters="reserved_blocks",
        ),
        _of("vllm.v1.core.kv_cache_manager:KVCacheBlocks", "get_block_ids", fields="blocks"),
        _of(_KV_CACHE, fields="kv_cache_groups"),
        _of(_GROUP, fields="kv_cache_spec"),
        _of("vllm.v1.kv_cache_interface:KVCacheSpec", fields="block_size"),
    ),
    # the worker and the runner
    *_in(
        "engine/worker.py",
        _of("vllm.v1.worker.worker_base", "WorkerBase"),
        _of(
            "vllm.v1.worker.gpu_worker:Worker",
            "compile_or_warm_up_model init_device initialize_from_config shutdown",
            made="model_runner",
        ),
    ),
    *_in(
        "engine/cpu_worker.py",
        _of("vllm.v1.outputs", "SamplerOutput"),
        _of("vllm.v1.worker.cpu_model_runner", "CPUModelRunner"),
        _of("vllm.v1.worker.cpu_worker", "CPUModelRunner CPUWorker"),
        _of(_RUNNER, "_bookkeeping_sync _sample", made="discard_request_mask input_batch"),
        _of(_BATCH, made="generators"),
        _of(_BUFFER, made="np"),
        platform="cpu",
    ),
    *_in(
        "compat/cpu_worker_0_23.py",
        _of("vllm.utils", "cpu_triton_utils"),
        _of("vllm.utils.cpu_triton_utils", "sample_recovered_tokens_kernel"),
        _of("vllm.utils.cpu_triton_utils:sample_recovered_tokens_kernel", "func"),
        line="0.23",
        platform="cpu",
    ),
    *_in(
        "engine/gpu_worker.py",
        _of("vllm.v1.worker.gpu_worker", "Worker"),
        _of("vllm.v1.worker.gpu_model_runner", "GPUModelRunner"),
        platform="cuda",
    ),
    *_in(
        "engine/runner.py",
        _of("vllm.config", "get_layers_from_vllm_config"),
        _of("vllm.logger", "init_logger"),
        _of("vllm.logger:_VllmLogger", "info_once"),
        _of("vllm.model_executor.layers.attention", "Attention"),
        _of("vllm.v1.outputs", "ModelRunnerOutput SamplerOutput"),
        _of("vllm.v1.worker.gpu_model_runner", "GPUModelRunner"),
        _of(_BACKENDS, "CommonAttentionMetadata"),
        _of("vllm.v1.core.sched.output", "SchedulerOutput"),
        _of("vllm.v1.sample.metadata", "SamplingMetadata"),
        _of("vllm.v1.spec_decode.metadata", "SpecDecodeMetadata"),
        _of(
            _RUNNER,
            "load_model initialize_kv_cache _cleanup_profiling_kv_cache "
            "_dummy_sampler_run execute_model sample_tokens _update_states "
            "_prepare_inputs _build_attention_metadata _model_forward _sample "
            "_input_fits_in_drafter propose_draft_token_ids",
            made="cache_config device drafter dtype effective_drafter_max_model_len "
            "input_batch kv_cache_config max_model_len max_num_reqs max_num_tokens "
            "model_config model_memory_usage num_spec_tokens positions sampler "
            "vllm_config",
        ),
        _of(_CACHE_CONFIG, fields="kv_cache_memory_bytes"),
        _of(_MODEL_CONFIG, "get_vocab_size"),
        _of(_KV_CACHE, fields="kv_cache_groups"),
        _of(_GROUP, fields="layer_names"),
        _of(_ATTENTION, made="impl"),
        _of(_PROPOSER, made="_draft_attn_layer_names"),
        _of(f"{_HEAD}:Eagle3LlamaForCausalLM", made="logits_processor"),
        _of("vllm.model_executor.layers.logits_processor:LogitsProcessor", made="vocab_size"),
        _of(
            _SCHEDULED,
            fields="finished_req_ids scheduled_new_reqs scheduled_spec_decode_tokens "
            "total_num_scheduled_tokens",
        ),
        _of("vllm.v1.core.sched.output:NewRequestData", fields="req_id"),
        _of(_BATCH, "num_reqs req_ids", made="block_table req_id_to_index"),
        _of(_TABLES, made="block_tables"),
        _of(_TABLE, made="slot_mapping"),
        _of(_BUFFER, made="gpu"),
        _of("vllm.v1.sample.sampler:Sampler.forward", parameters="logits sampling_metadata"),
        _of("vllm.v1.outputs:SamplerOutput", fields="logprobs_tensors sampled_token_ids"),
    ),
    *_in(
        "engine/batch_view.py",
        _of("vllm.v1.worker.gpu_model_runner", "GPUModelRunner"),
        _of(
            _RUNNER,
            made="discard_request_mask input_batch input_ids positions query_start_loc requests",
        ),
        _of(
            _BATCH,
            "num_reqs req_ids",
            made="block_table num_computed_tokens_cpu num_prompt_tokens num_tokens_no_spec "
            "token_ids_cpu",
        ),
        _of(_BUFFER, made="gpu np"),
        _of(_TABLES, made="block_tables"),
        _of(_TABLE, made="block_table slot_mapping"),
        _of(_REQUEST_STATE, fields="sampling_params"),
        _of(_SAMPLING_PARAMS, "max_tokens structured_outputs thinking_token_budget"),
    ),
    *_in(
        "engine/forward_profile.py",
        _of("vllm.v1.worker.gpu_model_runner", "GPUModelRunner"),
        _of(_RUNNER, "_dummy_run", made="model"),
        _of(
            "vllm.model_executor.models.llama:LlamaForCausalLM",
            "compute_logits register_forward_hook register_forward_pre_hook",
        ),
    ),
    *_in(
        "engine/warm_up.py",
        _of(_RUNNER, made="device dtype input_batch input_ids max_num_reqs max_num_tokens"),
        _of(_BATCH, made="block_table token_ids_cpu"),
        _of(_TABLES, "__getitem__", made="block_tables"),
        _of(_TABLE, made="block_table"),
        _of(_BUFFER, made="gpu"),
        _of(_ATTENTION, made="head_size impl kv_cache layer_name num_heads num_kv_heads"),
        _of(f"{_BACKENDS}:AttentionImpl", "forward"),
    ),
    *_in(
        "engine/tracer.py",
        _of("vllm.sampling_params", "SamplingParams"),
        _of(
            _RUNNER, made="device dtype input_batch max_model_len model_config requests vllm_config"
        ),
        _of(_BATCH, made="block_table"),
        _of(_TABLES, "__getitem__"),
        _of(_TABLE, made="block_size block_table num_blocks_per_row"),
        _of(_BUFFER, made="np"),
        _of(
            _REQUEST_STATE,
            fields="output_token_ids prompt_token_ids sampling_params",
            made="num_prompt_tokens",
        ),
        _of(
            _SAMPLING_PARAMS,
            "allowed_token_ids bad_words frequency_penalty logit_bias min_tokens "
            "presence_penalty repetition_penalty temperature thinking_token_budget",
        ),
        _of(_VLLM_CONFIG, fields="cache_config model_config scheduler_config speculative_config"),
        _of(_MODEL_CONFIG, fields="enforce_eager model seed"),
        _of(_SPECULATIVE, fields="model"),
        _of(_SCHEDULER_CONFIG, fields="max_num_batched_tokens max_num_seqs"),
        _of(_CACHE_CONFIG, fields="block_size"),
    ),
    *_in(
        "engine/step_memory.py",
        _of("vllm.model_executor.layers.attention", "Attention"),
        _of("vllm.logger", "init_logger"),
        _of("vllm.logger:_VllmLogger", "info_once"),
        _of(_ATTENTION, made="impl"),
    ),
    # drawing
    *_in(
        "engine/sampling.py",
        _of("vllm.v1.outputs", "LogprobsTensors"),
        _of(
            "vllm.v1.outputs:LogprobsTensors",
            fields="logprob_token_ids logprobs selected_token_ranks",
        ),
        _of("vllm.v1.sample.sampler", "Sampler"),
        _of("vllm.v1.sample.sampler:Sampler.forward", parameters="logits sampling_metadata"),
        _of("vllm.v1.outputs:SamplerOutput", fields="logprobs_tensors sampled_token_ids"),
        _of(_SAMPLING, fields="all_greedy"),
    ),
    *_in(
        "engine/request_sampling.py",
        _of("vllm.v1.worker.gpu_input_batch", "InputBatch"),
        _of("vllm.v1.sample.thinking_budget_state", "ThinkingBudgetStateHolder"),
        _of("vllm.v1.sample.logits_processor", "LogitsProcessors"),
        _of("vllm.v1.sample.logits_processor:LogitsProcessors", made="non_argmax_invariant"),
        _of("vllm.v1.sample.logits_processor.builtin", "MinTokensLogitsProcessor"),
        _of(
            "vllm.v1.sample.logits_processor.builtin:MinTokensLogitsProcessor",
            "apply apply_with_spec_decode is_argmax_invariant",
            made="min_toks",
        ),
        _of("vllm.v1.sample.metadata", "SamplingMetadata"),
        _of(
            _SAMPLING,
            fields="all_greedy allowed_token_ids_mask bad_words_token_ids frequency_penalties "
            "generators logitsprocs logprob_token_ids max_num_logprobs no_penalties "
            "output_token_ids presence_penalties prompt_token_ids repetition_penalties "
            "spec_token_ids temperature thinking_budget_state_holder top_k top_p",
        ),
        _of(
            _BATCH,
            made="frequency_penalties_reqs presence_penalties_reqs repetition_penalties_reqs "
            "req_id_to_index sampling_metadata",
        ),
        _of(_THINKING, "apply_to_logits has_tracked_requests update_state", made="_state"),
    ),
    # the head
    *_in(
        "engine/draft_head.py",
        _of(_BACKENDS, "AttentionMetadata CommonAttentionMetadata"),
        _of("vllm.v1.spec_decode.eagle", "EagleProposer"),
        _of(
            _PROPOSER,
            made="_draft_attn_layer_names draft_attn_groups kv_cache_gid model vllm_config",
        ),
        _of(_VLLM_CONFIG, fields="compilation_config speculative_config"),
        _of("vllm.config:CompilationConfig", fields="static_forward_context"),
        _of(_SPECULATIVE, fields="draft_model_config"),
        _of(_MODEL_CONFIG, "get_hidden_size"),
        _of(_ATTENTION, made="impl"),
        _of(
            f"{_HEAD}:Eagle3LlamaForCausalLM", "combine_hidden_states", made="draft_id_to_target_id"
        ),
        _of(
            _COMMON,
            fields="block_table_tensor max_query_len max_seq_len num_actual_tokens num_reqs "
            "query_start_loc query_start_loc_cpu seq_lens slot_mapping",
        ),
        _of("vllm.v1.worker.utils:AttentionGroup", "get_metadata_builder"),
        _of(f"{_BACKENDS}:AttentionMetadataBuilder", "build"),
    ),
    *_in(
        "engine/head_pass.py",
        _of("vllm.config", "VllmConfig"),
        _of("vllm.model_executor.layers.layernorm", "RMSNorm"),
        _of("vllm.model_executor.layers.linear", "LinearBase"),
        _of(_BACKENDS, "AttentionMetadata"),
        _of("vllm", "_custom_ops"),
        _of(_CUSTOM_OPS, "rotary_embedding"),
        _of(_OPS, "fused_add_rms_norm rms_norm silu_and_mul", platform="cpu"),
        _of("vllm.forward_context", "set_forward_context"),
        _of("vllm.forward_context:set_forward_context", parameters="num_tokens slot_mapping"),
        _of(_HEAD, "Eagle3LlamaForCausalLM"),
        _of(f"{_HEAD}:Eagle3LlamaForCausalLM", made="lm_head logits_processor model"),
        _of(
            f"{_HEAD}:Eagle3LlamaForCausalLM.forward",
            parameters="hidden_states input_ids inputs_embeds positions",
        ),
        _of(f"{_HEAD}:LlamaModel", made="config embed_tokens layers norm norm_output"),
        _of(
            f"{_HEAD}:LlamaDecoderLayer",
            made="hidden_norm input_layernorm layer_idx mlp post_attention_layernorm self_attn",
        ),
        _of(
            "vllm.model_executor.models.llama:LlamaAttention",
            made="attn kv_size o_proj q_size qkv_proj rotary_emb",
        ),
        _of("vllm.model_executor.models.llama:LlamaMLP", made="down_proj gate_up_proj"),
        _of(
            "vllm.model_executor.layers.rotary_embedding.base:RotaryEmbedding",
            made="cos_sin_cache head_size is_neox_style rotary_dim",
        ),
        _of("vllm.model_executor.layers.layernorm:RMSNorm", made="variance_epsilon weight"),
        _of(
            "vllm.model_executor.layers.utils:dispatch_cpu_unquantized_gemm",
            made="cpu_linear",
            platform="cpu",
        ),
        _of("vllm.model_executor.layers.linear:ColumnParallelLinear", made="bias"),
        _of(
            "vllm.model_executor.layers.linear:UnquantizedLinearMethod.create_weights",
            made="weight",
        ),
        _of(_ATTENTION, made="head_size impl kv_cache"),
        _of(f"{_BACKENDS}:AttentionImpl", "forward"),
        _of(
            f"{_CPU_ATTN}:CPUAttentionBackendImpl",
            "do_kv_cache_update",
            line="0.32",
            platform="cpu",
        ),
    ),
    # attention
    *_in(
        "engine/attention.py",
        _of("vllm.model_executor.layers.attention", "Attention"),
        _of(_BACKENDS, "AttentionImpl AttentionMetadata AttentionMetadataBuilder"),
        _of(f"{_BACKENDS}:AttentionMetadataBuilder", "build"),
        _of(f"{_BACKENDS}:AttentionImpl", "forward"),
        _of(_ATTENTION, made="impl layer_name"),
        _of(
            f"{_CPU_ATTN}:CPUAttentionBackendImpl",
            made="alibi_slopes kv_cache_dtype kv_sharing_target_layer_name logits_soft_cap "
            "scale sinks sliding_window",
            platform="cpu",
        ),
        _of(
            f"{_FLASH_ATTN}:FlashAttentionImpl",
            made="alibi_slopes kv_cache_dtype kv_sharing_target_layer_name logits_soft_cap "
            "scale sinks sliding_window",
            platform="cuda",
        ),
        _of(
            f"{_TRITON_ATTN}:TritonAttentionImpl",
            made="alibi_slopes kv_cache_dtype kv_sharing_target_layer_name logits_soft_cap "
            "scale sinks sliding_window",
            platform="cuda",
        ),
    ),
    *_in(
        "engine/loaded_layers.py",
        _of("vllm.config", "VllmConfig get_layers_from_vllm_config"),
        _of("vllm.model_executor.layers.attention_layer_base", "AttentionLayerBase"),
        _of(
            "vllm.model_executor.layers.attention_layer_base:AttentionLayerBase", "get_attn_backend"
        ),
        _of(f"{_BACKENDS}:AttentionBackend", "get_name"),
        _of(_ATTENTION, made="impl"),
    ),
    *_in(
        "engine/page_proof.py",
        _of("vllm.model_executor.layers.attention", "Attention"),
        _of(_ATTENTION, made="head_size impl kv_cache layer_name num_kv_heads"),
        _CACHE_WRITES,
    ),
    *_in(
        "engine/target_pages.py",
        _of("vllm.v1.kv_cache_interface", "KVCacheGroupSpec"),
        _of(_BACKENDS, "AttentionMetadata"),
        _of("vllm.model_executor.layers.attention", "Attention"),
        _of(_ATTENTION, made="impl kv_cache layer_name"),
        _of(_GROUP, fields="layer_names"),
        _CACHE_WRITES,
    ),
    *_in(
        "engine/cpu_attention.py",
        _of("vllm.config", "get_layers_from_vllm_config"),
        _of("vllm.logger", "init_logger"),
        _of("vllm.logger:_VllmLogger", "info_once"),
        _of("vllm.model_executor.layers.attention", "Attention"),
        _of(_ATTENTION, made="head_size kv_cache_torch_dtype num_kv_heads"),
        _of(_CPU_ATTN, "CPUAttentionBackend CPUAttentionBackendImpl CPUAttentionMetadataBuilder"),
        _of(f"{_CPU_ATTN}:CPUAttentionBackend", "get_builder_cls get_impl_cls"),
        _of(f"{_CPU_ATTN}:CPUAttentionMetadataBuilder", made="isa kv_cache_spec"),
        _of("vllm.v1.kv_cache_interface:KVCacheSpec", fields="block_size"),
        platform="cpu",
    ),
    *_in(
        "compat/cpu_attention_0_23.py",
        _of("vllm", "_custom_ops"),
        _of(_CUSTOM_OPS, "cpu_attn_reshape_and_cache"),
        _of(
            f"{_CUSTOM_OPS}:cpu_attn_reshape_and_cache", parameters="k_scale kv_cache_dtype v_scale"
        ),
        _of(f"{_CPU_ATTN}:CPUAttentionBackendImpl", made="kv_cache_dtype"),
        _of(f"{_CPU_ATTN}:CPUAttentionMetadataBuilder", made="isa"),
        _of(f"{_BACKENDS}:AttentionBackend", "forward_includes_kv_cache_update get_impl_cls"),
        _of(_ATTENTION, made="_k_scale_float _v_scale_float"),
        line="0.23",
        platform="cpu",
    ),
    *_in(
        "engine/flash_attention.py",
        _of("vllm.model_executor.layers.attention", "Attention"),
        _of(_BACKENDS, "AttentionCGSupport"),
        _of(f"{_BACKENDS}:AttentionCGSupport", "NEVER"),
        _of(_FLASH_ATTN, "FlashAttentionBackend FlashAttentionImpl FlashAttentionMetadataBuilder"),
        _of(f"{_FLASH_ATTN}:FlashAttentionMetadataBuilder", "_cudagraph_support"),
        _of(f"{_FLASH_ATTN}:FlashAttentionBackend", "get_builder_cls get_impl_cls"),
        platform="cuda",
    ),
    *_in(
        "engine/triton_attention.py",
        _of("vllm.model_executor.layers.attention", "Attention"),
        _of(_BACKENDS, "AttentionCGSupport"),
        _of(f"{_BACKENDS}:AttentionCGSupport", "NEVER"),
        _of(
            _TRITON_ATTN,
            "TritonAttentionBackend TritonAttentionImpl TritonAttentionMetadataBuilder",
        ),
        _of(f"{_TRITON_ATTN}:TritonAttentionMetadataBuilder", "_cudagraph_support"),
        _of(f"{_TRITON_ATTN}:TritonAttentionBackend", "get_builder_cls get_impl_cls"),
        platform="cuda",
    ),
    # the target's model
    *_in(
        "models/openpangu.py",
        _of("vllm.compilation.decorators", "support_torch_compile"),
        _of("vllm.compilation.decorators:support_torch_compile", parameters="dynamic_arg_dims"),
        _of("vllm.config", "VllmConfig"),
        _of("vllm.distributed", "get_pp_group"),
        _of("vllm.distributed.parallel_state:GroupCoordinator", made="world_size"),
        _of("vllm.model_executor.models.interfaces", "EagleModelMixin SupportsEagle3"),
        _of(
            "vllm.model_executor.models.interfaces:EagleModelMixin",
            "_maybe_add_hidden_state aux_hidden_state_layers",
        ),
        _of("vllm.model_executor.models", "openpangu"),
        _of(_PANGU, "OpenPanguModel PanguEmbeddedForCausalLM"),
        _of(
            f"{_PANGU}:OpenPanguModel",
            "embed_input_ids forward",
            made="layers norm",
            parameters="prefix vllm_config",
        ),
        _of("vllm.sequence", "IntermediateTensors"),
    ),
    *_in(
        "models/registration.py",
        _of("vllm", "ModelRegistry"),
        _of("vllm:ModelRegistry", "models register_model"),
        _of("vllm.model_executor.models.registry:_LazyRegisteredModel", fields="module_name"),
    ),
)
