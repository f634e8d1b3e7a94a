# SPDX-License-Identifier: Apache-2.0
"""Every name of vLLM's that `engine/`, `compat/` and `models/` touch, file by file.

Read by tests/plugin/test_seam_table.py alone, which names what an installed vLLM lacks, what our
files touch and this table lacks, and what this table has and our files no longer touch.
Tables of options that we refuse are elsewhere: see `refusals.py`, `target_fit.py`.
"""

from vllm_eagle_pangu.compat.seam_entry import Kind, Seam

_ARGS = "vllm.engine.arg_utils:EngineArgs"
_ATTENTION = "vllm.model_executor.layers.attention:Attention"
_ATTENTION_CONFIG = "vllm.config:AttentionConfig"
_BACKENDS = "vllm.v1.attention.backend"
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


def _in(
    used_in: str,
    owner: str,
    has: str = "",
    *,
    made: str = "",
    fields: str = "",
    parameters: str = "",
    line: str | None = None,
    platform: str | None = None,
) -> tuple[Seam, ...]:
    """Entries of one owner in one file; names apart by blanks, `has` being of kind NAME."""
    kinds: tuple[tuple[Kind, str], ...] = (
        ("NAME", has),
        ("MADE", made),
        ("FIELD", fields),
        ("PARAMETER", parameters),
    )
    every = Seam.lines if line is None else (line,)
    return tuple(
        Seam(owner, name, kind, used_in, every, platform)
        for kind, names in kinds
        for name in names.split()
    )


SEAMS: tuple[Seam, ...] = (
    # ---- the configuration, in every process ----
    *_in("compat/__init__.py", "vllm", "__version__"),
    *_in("compat/__init__.py", "vllm.platforms", "current_platform"),
    *_in("compat/__init__.py", _PLATFORM, made="device_type"),
    *_in("compat/engine_args.py", "vllm.config", "SpeculativeConfig VllmConfig"),
    *_in("compat/engine_args.py", "vllm.engine.arg_utils", "EngineArgs"),
    *_in("compat/engine_args.py", "vllm.platforms", "current_platform"),
    *_in("compat/engine_args.py", _PLATFORM, made="device_type"),
    *_in("compat/engine_args.py", _VLLM_CONFIG, "use_v2_model_runner"),
    *_in("compat/engine_args.py", _VLLM_CONFIG, fields="parallel_config scheduler_config"),
    *_in("compat/engine_args.py", "vllm.config:ParallelConfig", fields="worker_cls"),
    *_in("compat/engine_args.py", _SCHEDULER_CONFIG, fields="scheduler_cls"),
    *_in("compat/engine_args.py", _ARGS, "create_speculative_config create_engine_config"),
    *_in("compat/engine_args.py", _ARGS, fields="model speculative_config async_scheduling"),
    *_in(
        "compat/engine_args.py",
        _SPECULATIVE,
        fields="target_model_config target_parallel_config draft_model_config "
        "draft_parallel_config",
    ),
    *_in("compat/method_choice.py", _ARGS, fields="speculative_config"),
    *_in(
        "compat/method_choice.py", _ARGS, fields="spec_method spec_model spec_tokens", line="0.32"
    ),
    *_in("compat/unsupported.py", "vllm", "__version__"),
    *_in("compat/unsupported.py", "vllm.engine.arg_utils", "EngineArgs"),
    *_in("compat/unsupported.py", _ARGS, "create_engine_config"),
    *_in(
        "compat/platform_parts.py",
        "vllm.v1.attention.backends.registry",
        "AttentionBackendEnum register_backend",
    ),
    *_in(
        "compat/platform_parts.py",
        "vllm.v1.attention.backends.registry:AttentionBackendEnum",
        "get_path",
    ),
    *_in("compat/platform_parts.py", "vllm.v1.attention", "selector"),
    *_in("compat/platform_parts.py", "vllm.v1.attention.selector", "_cached_get_attn_backend"),
    *_in(
        "compat/platform_parts.py",
        "vllm.v1.attention.selector:_cached_get_attn_backend",
        "cache_clear",
    ),
    *_in(
        "compat/vllm_0_23.py",
        "vllm.v1.attention.backends.registry:AttentionBackendEnum",
        "CPU_ATTN FLASH_ATTN TRITON_ATTN",
        line="0.23",
    ),
    *_in(
        "compat/vllm_0_32.py",
        "vllm.v1.attention.backends.registry:AttentionBackendEnum",
        "CPU_ATTN FLASH_ATTN TRITON_ATTN",
        line="0.32",
    ),
    *_in("engine/refusals.py", "vllm", "envs"),
    *_in("engine/refusals.py", "vllm.envs", "VLLM_USE_V2_MODEL_RUNNER"),
    *_in("engine/refusals.py", "vllm.platforms", "current_platform"),
    *_in("engine/refusals.py", _PLATFORM, "is_rocm get_device_capability", made="device_type"),
    *_in("engine/refusals.py", "vllm.platforms.interface:DeviceCapability", "major"),
    *_in("engine/refusals.py", "vllm.utils.torch_utils", "kv_cache_dtype_str_to_dtype"),
    *_in("engine/refusals.py", "vllm.v1.attention.backends.registry", "AttentionBackendEnum"),
    *_in(
        "engine/refusals.py",
        _VLLM_CONFIG,
        fields="attention_config cache_config kv_transfer_config model_config quant_config "
        "scheduler_config speculative_config",
    ),
    *_in("engine/refusals.py", _ATTENTION_CONFIG, fields="backend"),
    *_in("engine/refusals.py", _ATTENTION_CONFIG, fields="backend_per_kind", line="0.32"),
    *_in("engine/refusals.py", _SPECULATIVE, fields="attention_backend"),
    *_in("engine/refusals.py", _SPECULATIVE, fields="kv_cache_dtype", line="0.32"),
    *_in("engine/refusals.py", "vllm.config:KVTransferConfig", fields="kv_connector"),
    *_in(
        "engine/refusals.py",
        _SCHEDULER_CONFIG,
        fields="max_num_batched_tokens max_num_scheduled_tokens",
    ),
    *_in("engine/refusals.py", _CACHE_CONFIG, fields="cache_dtype"),
    *_in("engine/refusals.py", _MODEL_CONFIG, fields="dtype"),
    *_in(
        "engine/refusals.py",
        "vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors:"
        "CompressedTensorsConfig",
        made="kv_cache_scheme",
    ),
    *_in("engine/target_fit.py", "vllm.model_executor.models.interfaces", "supports_eagle3"),
    *_in("engine/target_fit.py", _MODEL_CONFIG, "architectures registry"),
    *_in("engine/target_fit.py", _MODEL_CONFIG, fields="model", made="hf_text_config runner_type"),
    *_in(
        "engine/target_fit.py",
        "vllm.model_executor.models.registry:ModelRegistry",
        "resolve_model_cls",
    ),
    *_in("engine/head_fit.py", _VLLM_CONFIG, fields="model_config speculative_config"),
    *_in("engine/head_fit.py", _SPECULATIVE, fields="draft_model_config"),
    *_in(
        "engine/head_fit.py",
        _MODEL_CONFIG,
        "architectures get_hidden_size get_total_num_hidden_layers get_vocab_size",
        fields="model",
        made="hf_config _model_info",
    ),
    *_in(
        "engine/head_fit.py",
        "vllm.model_executor.models.registry:_ModelInfo",
        fields="architecture",
    ),
    *_in("engine/head_fit.py", _HEAD, "Eagle3LlamaForCausalLM"),
    *_in(
        "engine/head_fit.py",
        "vllm.model_executor.models.qwen3_eagle3",
        "Eagle3Qwen3ForCausalLM",
        line="0.32",
    ),
    *_in("engine/head_folder.py", "vllm", "ModelRegistry"),
    *_in("engine/head_folder.py", "vllm:ModelRegistry", "get_supported_archs"),
    *_in("engine/head_layers.py", _VLLM_CONFIG, fields="scheduler_config speculative_config"),
    *_in("engine/head_layers.py", _SPECULATIVE, fields="draft_model_config"),
    *_in("engine/head_layers.py", _MODEL_CONFIG, fields="model", made="hf_config"),
    *_in("engine/head_layers.py", _SCHEDULER_CONFIG, fields="disable_hybrid_kv_cache_manager"),
    *_in("engine/head_length.py", _VLLM_CONFIG, fields="model_config speculative_config"),
    *_in(
        "engine/head_length.py",
        _SPECULATIVE,
        fields="draft_model_config max_model_len target_model_config",
    ),
    *_in("engine/head_length.py", _MODEL_CONFIG, fields="max_model_len", made="hf_config"),
    # ---- the scheduler ----
    *_in("engine/scheduler.py", "vllm.v1.core.sched.output", "SchedulerOutput"),
    *_in("engine/scheduler.py", "vllm.v1.core.sched.scheduler", "Scheduler"),
    *_in("engine/scheduler.py", "vllm.v1.outputs", "DraftTokenIds"),
    *_in("engine/scheduler.py", "vllm.v1.request", "Request"),
    *_in(
        "engine/scheduler.py",
        _SCHEDULER,
        "update_draft_token_ids _update_after_schedule",
        made="kv_cache_config kv_cache_manager max_model_len max_num_running_reqs "
        "max_num_scheduled_tokens num_lookahead_tokens num_spec_tokens requests running "
        "scheduler_config vllm_config",
    ),
    *_in("engine/scheduler.py", _SCHEDULER, made="dynamic_sd_lookup", line="0.32"),
    *_in("engine/scheduler.py", _SCHEDULER_CONFIG, fields="max_num_batched_tokens"),
    *_in("engine/scheduler.py", "vllm.v1.outputs:DraftTokenIds", fields="req_ids"),
    *_in(
        "engine/scheduler.py",
        _REQUEST,
        "num_output_tokens num_tokens",
        made="max_tokens num_computed_tokens request_id spec_token_ids",
    ),
    *_in(
        "engine/scheduler.py",
        _SCHEDULED,
        fields="num_scheduled_tokens scheduled_cached_reqs scheduled_spec_decode_tokens "
        "total_num_scheduled_tokens",
    ),
    *_in(
        "engine/scheduler.py",
        "vllm.v1.core.sched.output:CachedRequestData",
        fields="new_block_ids req_ids resumed_req_ids",
    ),
    *_in(
        "engine/scheduler.py",
        "vllm.v1.core.kv_cache_manager:KVCacheManager",
        "allocate_slots get_blocks",
    ),
    *_in(
        "engine/scheduler.py",
        "vllm.v1.core.kv_cache_manager:KVCacheManager.allocate_slots",
        parameters="reserved_blocks",
    ),
    *_in(
        "engine/scheduler.py",
        "vllm.v1.core.kv_cache_manager:KVCacheBlocks",
        "get_block_ids",
        fields="blocks",
    ),
    *_in("engine/scheduler.py", _KV_CACHE, fields="kv_cache_groups"),
    *_in("engine/scheduler.py", _GROUP, fields="kv_cache_spec"),
    *_in("engine/scheduler.py", "vllm.v1.kv_cache_interface:KVCacheSpec", fields="block_size"),
    # ---- the worker and the runner ----
    *_in("engine/worker.py", "vllm.v1.worker.worker_base", "WorkerBase"),
    *_in(
        "engine/worker.py",
        "vllm.v1.worker.gpu_worker:Worker",
        "compile_or_warm_up_model init_device initialize_from_config shutdown",
        made="model_runner",
    ),
    *_in("engine/cpu_worker.py", "vllm.v1.outputs", "SamplerOutput", platform="cpu"),
    *_in(
        "engine/cpu_worker.py",
        "vllm.v1.worker.cpu_model_runner",
        "CPUModelRunner",
        platform="cpu",
    ),
    *_in(
        "engine/cpu_worker.py",
        "vllm.v1.worker.cpu_worker",
        "CPUModelRunner CPUWorker",
        platform="cpu",
    ),
    *_in(
        "engine/cpu_worker.py",
        _RUNNER,
        "_bookkeeping_sync _sample",
        made="discard_request_mask input_batch",
        platform="cpu",
    ),
    *_in("engine/cpu_worker.py", _BATCH, made="generators", platform="cpu"),
    *_in("engine/cpu_worker.py", _BUFFER, made="np", platform="cpu"),
    *_in(
        "compat/cpu_worker_0_23.py", "vllm.utils", "cpu_triton_utils", line="0.23", platform="cpu"
    ),
    *_in(
        "compat/cpu_worker_0_23.py",
        "vllm.utils.cpu_triton_utils",
        "sample_recovered_tokens_kernel",
        line="0.23",
        platform="cpu",
    ),
    *_in(
        "compat/cpu_worker_0_23.py",
        "vllm.utils.cpu_triton_utils:sample_recovered_tokens_kernel",
        "func",
        line="0.23",
        platform="cpu",
    ),
    *_in("engine/gpu_worker.py", "vllm.v1.worker.gpu_worker", "Worker", platform="cuda"),
    *_in(
        "engine/gpu_worker.py", "vllm.v1.worker.gpu_model_runner", "GPUModelRunner", platform="cuda"
    ),
    *_in("engine/runner.py", "vllm.config", "get_layers_from_vllm_config"),
    *_in("engine/runner.py", "vllm.logger", "init_logger"),
    *_in("engine/runner.py", "vllm.logger:_VllmLogger", "info_once"),
    *_in("engine/runner.py", "vllm.model_executor.layers.attention", "Attention"),
    *_in("engine/runner.py", "vllm.v1.outputs", "SamplerOutput"),
    *_in("engine/runner.py", "vllm.v1.worker.gpu_model_runner", "GPUModelRunner"),
    *_in(
        "engine/runner.py",
        _RUNNER,
        "load_model initialize_kv_cache _cleanup_profiling_kv_cache _dummy_sampler_run "
        "execute_model sample_tokens _update_states _prepare_inputs _build_attention_metadata "
        "_model_forward _sample _input_fits_in_drafter propose_draft_token_ids",
        made="cache_config device drafter dtype effective_drafter_max_model_len input_batch "
        "kv_cache_config max_model_len max_num_reqs max_num_tokens model_config "
        "model_memory_usage num_spec_tokens positions sampler use_aux_hidden_state_outputs "
        "vllm_config",
    ),
    *_in("engine/runner.py", _CACHE_CONFIG, fields="kv_cache_memory_bytes"),
    *_in("engine/runner.py", _MODEL_CONFIG, "get_vocab_size"),
    *_in("engine/runner.py", _KV_CACHE, fields="kv_cache_groups"),
    *_in("engine/runner.py", _GROUP, fields="layer_names"),
    *_in("engine/runner.py", _ATTENTION, made="impl"),
    *_in("engine/runner.py", _PROPOSER, made="_draft_attn_layer_names"),
    *_in("engine/runner.py", f"{_HEAD}:Eagle3LlamaForCausalLM", made="logits_processor"),
    *_in(
        "engine/runner.py",
        "vllm.model_executor.layers.logits_processor:LogitsProcessor",
        made="vocab_size",
    ),
    *_in(
        "engine/runner.py",
        _SCHEDULED,
        fields="finished_req_ids scheduled_new_reqs scheduled_spec_decode_tokens "
        "total_num_scheduled_tokens",
    ),
    *_in("engine/runner.py", "vllm.v1.core.sched.output:NewRequestData", fields="req_id"),
    *_in("engine/runner.py", _BATCH, "num_reqs req_ids", made="block_table req_id_to_index"),
    *_in("engine/runner.py", _TABLES, made="block_tables"),
    *_in("engine/runner.py", _TABLE, made="slot_mapping"),
    *_in("engine/runner.py", _BUFFER, made="gpu"),
    *_in(
        "engine/runner.py",
        "vllm.v1.sample.sampler:Sampler.forward",
        parameters="logits sampling_metadata",
    ),
    *_in(
        "engine/runner.py",
        "vllm.v1.outputs:SamplerOutput",
        fields="logprobs_tensors sampled_token_ids",
    ),
    *_in(
        "engine/batch_view.py",
        _RUNNER,
        made="discard_request_mask input_batch input_ids positions query_start_loc requests",
    ),
    *_in(
        "engine/batch_view.py",
        _BATCH,
        "num_reqs req_ids",
        made="block_table num_computed_tokens_cpu num_prompt_tokens num_tokens_no_spec "
        "token_ids_cpu",
    ),
    *_in("engine/batch_view.py", _BUFFER, made="gpu np"),
    *_in("engine/batch_view.py", _TABLES, made="block_tables"),
    *_in("engine/batch_view.py", _TABLE, made="block_table slot_mapping"),
    *_in("engine/batch_view.py", _REQUEST_STATE, fields="sampling_params"),
    *_in(
        "engine/batch_view.py",
        _SAMPLING_PARAMS,
        "max_tokens structured_outputs thinking_token_budget",
    ),
    *_in(
        "engine/warm_up.py",
        _RUNNER,
        made="device dtype input_batch input_ids max_num_reqs max_num_tokens",
    ),
    *_in("engine/warm_up.py", _BATCH, made="block_table token_ids_cpu"),
    *_in("engine/warm_up.py", _TABLES, "__getitem__", made="block_tables"),
    *_in("engine/warm_up.py", _TABLE, made="block_table"),
    *_in("engine/warm_up.py", _BUFFER, made="gpu"),
    *_in(
        "engine/warm_up.py",
        _ATTENTION,
        made="head_size impl kv_cache layer_name num_heads num_kv_heads",
    ),
    *_in("engine/warm_up.py", f"{_BACKENDS}:AttentionImpl", "forward"),
    *_in(
        "engine/tracer.py",
        _RUNNER,
        made="device dtype input_batch max_model_len model_config requests vllm_config",
    ),
    *_in("engine/tracer.py", _BATCH, made="block_table"),
    *_in("engine/tracer.py", _TABLES, "__getitem__"),
    *_in("engine/tracer.py", _TABLE, made="block_size block_table num_blocks_per_row"),
    *_in("engine/tracer.py", _BUFFER, made="np"),
    *_in(
        "engine/tracer.py",
        _REQUEST_STATE,
        fields="output_token_ids prompt_token_ids sampling_params",
        made="num_prompt_tokens",
    ),
    *_in(
        "engine/tracer.py",
        _SAMPLING_PARAMS,
        "allowed_token_ids bad_words frequency_penalty logit_bias min_tokens presence_penalty "
        "repetition_penalty temperature thinking_token_budget",
    ),
    *_in(
        "engine/tracer.py",
        _VLLM_CONFIG,
        fields="cache_config model_config scheduler_config speculative_config",
    ),
    *_in("engine/tracer.py", _MODEL_CONFIG, fields="enforce_eager model seed"),
    *_in("engine/tracer.py", _SPECULATIVE, fields="model"),
    *_in("engine/tracer.py", _SCHEDULER_CONFIG, fields="max_num_batched_tokens max_num_seqs"),
    *_in("engine/tracer.py", _CACHE_CONFIG, fields="block_size"),
    *_in("engine/step_memory.py", "vllm.logger", "init_logger"),
    *_in("engine/step_memory.py", "vllm.logger:_VllmLogger", "info_once"),
    *_in("engine/step_memory.py", _ATTENTION, made="impl"),
    # ---- drawing ----
    *_in("engine/sampling.py", "vllm.v1.outputs", "LogprobsTensors"),
    *_in(
        "engine/sampling.py",
        "vllm.v1.outputs:LogprobsTensors",
        fields="logprob_token_ids logprobs selected_token_ranks",
    ),
    *_in("engine/sampling.py", "vllm.v1.sample.sampler", "Sampler"),
    *_in(
        "engine/sampling.py",
        "vllm.v1.sample.sampler:Sampler.forward",
        parameters="logits sampling_metadata",
    ),
    *_in(
        "engine/sampling.py",
        "vllm.v1.outputs:SamplerOutput",
        fields="logprobs_tensors sampled_token_ids",
    ),
    *_in("engine/sampling.py", _SAMPLING, fields="all_greedy"),
    *_in("engine/request_sampling.py", "vllm.v1.sample.logits_processor", "LogitsProcessors"),
    *_in(
        "engine/request_sampling.py",
        "vllm.v1.sample.logits_processor:LogitsProcessors",
        made="non_argmax_invariant",
    ),
    *_in(
        "engine/request_sampling.py",
        "vllm.v1.sample.logits_processor.builtin",
        "MinTokensLogitsProcessor",
    ),
    *_in(
        "engine/request_sampling.py",
        "vllm.v1.sample.logits_processor.builtin:MinTokensLogitsProcessor",
        "apply apply_with_spec_decode is_argmax_invariant",
        made="min_toks",
    ),
    *_in("engine/request_sampling.py", "vllm.v1.sample.metadata", "SamplingMetadata"),
    *_in(
        "engine/request_sampling.py",
        _SAMPLING,
        fields="all_greedy allowed_token_ids_mask bad_words_token_ids frequency_penalties "
        "generators logitsprocs logprob_token_ids max_num_logprobs no_penalties output_token_ids "
        "presence_penalties prompt_token_ids repetition_penalties spec_token_ids temperature "
        "thinking_budget_state_holder top_k top_p",
    ),
    *_in(
        "engine/request_sampling.py",
        _BATCH,
        made="frequency_penalties_reqs presence_penalties_reqs repetition_penalties_reqs "
        "req_id_to_index sampling_metadata",
    ),
    *_in(
        "engine/request_sampling.py",
        _THINKING,
        "apply_to_logits has_tracked_requests update_state",
        made="_state",
    ),
    # ---- the head ----
    *_in("engine/draft_head.py", "vllm.v1.spec_decode.eagle", "EagleProposer"),
    *_in(
        "engine/draft_head.py",
        _PROPOSER,
        made="_draft_attn_layer_names draft_attn_groups kv_cache_gid model vllm_config",
    ),
    *_in("engine/draft_head.py", _VLLM_CONFIG, fields="compilation_config speculative_config"),
    *_in("engine/draft_head.py", "vllm.config:CompilationConfig", fields="static_forward_context"),
    *_in("engine/draft_head.py", _SPECULATIVE, fields="draft_model_config"),
    *_in("engine/draft_head.py", _MODEL_CONFIG, "get_hidden_size"),
    *_in("engine/draft_head.py", _ATTENTION, made="impl"),
    *_in(
        "engine/draft_head.py",
        f"{_HEAD}:Eagle3LlamaForCausalLM",
        "combine_hidden_states",
        made="draft_id_to_target_id",
    ),
    *_in(
        "engine/draft_head.py",
        _COMMON,
        fields="block_table_tensor max_query_len max_seq_len num_actual_tokens num_reqs "
        "query_start_loc query_start_loc_cpu seq_lens slot_mapping",
    ),
    *_in("engine/draft_head.py", "vllm.v1.worker.utils:AttentionGroup", "get_metadata_builder"),
    *_in("engine/draft_head.py", f"{_BACKENDS}:AttentionMetadataBuilder", "build"),
    *_in("engine/head_pass.py", "vllm", "_custom_ops"),
    *_in("engine/head_pass.py", _CUSTOM_OPS, "rotary_embedding"),
    *_in("engine/head_pass.py", _OPS, "fused_add_rms_norm rms_norm silu_and_mul", platform="cpu"),
    *_in("engine/head_pass.py", "vllm.forward_context", "set_forward_context"),
    *_in(
        "engine/head_pass.py",
        "vllm.forward_context:set_forward_context",
        parameters="num_tokens slot_mapping",
    ),
    *_in("engine/head_pass.py", _HEAD, "Eagle3LlamaForCausalLM"),
    *_in(
        "engine/head_pass.py",
        f"{_HEAD}:Eagle3LlamaForCausalLM",
        made="lm_head logits_processor model",
    ),
    *_in(
        "engine/head_pass.py",
        f"{_HEAD}:Eagle3LlamaForCausalLM.forward",
        parameters="hidden_states input_ids inputs_embeds positions",
    ),
    *_in(
        "engine/head_pass.py",
        f"{_HEAD}:LlamaModel",
        made="config embed_tokens layers norm norm_output",
    ),
    *_in(
        "engine/head_pass.py",
        f"{_HEAD}:LlamaDecoderLayer",
        made="hidden_norm input_layernorm layer_idx mlp post_attention_layernorm self_attn",
    ),
    *_in(
        "engine/head_pass.py",
        "vllm.model_executor.models.llama:LlamaAttention",
        made="attn kv_size o_proj q_size qkv_proj rotary_emb",
    ),
    *_in(
        "engine/head_pass.py",
        "vllm.model_executor.models.llama:LlamaMLP",
        made="down_proj gate_up_proj",
    ),
    *_in(
        "engine/head_pass.py",
        "vllm.model_executor.layers.rotary_embedding.base:RotaryEmbedding",
        made="cos_sin_cache head_size is_neox_style rotary_dim",
    ),
    *_in(
        "engine/head_pass.py",
        "vllm.model_executor.layers.layernorm:RMSNorm",
        made="variance_epsilon weight",
    ),
    *_in(
        "engine/head_pass.py",
        "vllm.model_executor.layers.utils:dispatch_cpu_unquantized_gemm",
        made="cpu_linear",
        platform="cpu",
    ),
    *_in(
        "engine/head_pass.py",
        "vllm.model_executor.layers.linear:ColumnParallelLinear",
        made="bias",
    ),
    *_in(
        "engine/head_pass.py",
        "vllm.model_executor.layers.linear:UnquantizedLinearMethod.create_weights",
        made="weight",
    ),
    *_in("engine/head_pass.py", _ATTENTION, made="head_size impl kv_cache"),
    *_in("engine/head_pass.py", f"{_BACKENDS}:AttentionImpl", "forward"),
    *_in(
        "engine/head_pass.py",
        f"{_CPU_ATTN}:CPUAttentionBackendImpl",
        "do_kv_cache_update",
        line="0.32",
        platform="cpu",
    ),
    # ---- attention ----
    *_in("engine/attention.py", _BACKENDS, "AttentionImpl AttentionMetadataBuilder"),
    *_in("engine/attention.py", f"{_BACKENDS}:AttentionMetadataBuilder", "build"),
    *_in("engine/attention.py", f"{_BACKENDS}:AttentionImpl", "forward"),
    *_in("engine/attention.py", _ATTENTION, made="impl layer_name"),
    *(
        seam
        for impl, platform in (
            (f"{_CPU_ATTN}:CPUAttentionBackendImpl", "cpu"),
            (f"{_FLASH_ATTN}:FlashAttentionImpl", "cuda"),
            (f"{_TRITON_ATTN}:TritonAttentionImpl", "cuda"),
        )
        for seam in _in(
            "engine/attention.py",
            impl,
            made="alibi_slopes kv_cache_dtype kv_sharing_target_layer_name logits_soft_cap scale "
            "sinks sliding_window",
            platform=platform,
        )
    ),
    *_in("engine/loaded_layers.py", "vllm.config", "get_layers_from_vllm_config"),
    *_in(
        "engine/loaded_layers.py",
        "vllm.model_executor.layers.attention_layer_base",
        "AttentionLayerBase",
    ),
    *_in(
        "engine/loaded_layers.py",
        "vllm.model_executor.layers.attention_layer_base:AttentionLayerBase",
        "get_attn_backend",
    ),
    *_in("engine/loaded_layers.py", f"{_BACKENDS}:AttentionBackend", "get_name"),
    *_in("engine/loaded_layers.py", _ATTENTION, made="impl"),
    *_in(
        "engine/page_proof.py",
        _ATTENTION,
        made="head_size impl kv_cache layer_name num_kv_heads",
    ),
    *_in("engine/target_pages.py", "vllm.model_executor.layers.attention", "Attention"),
    *_in("engine/target_pages.py", _ATTENTION, made="impl kv_cache layer_name"),
    *_in("engine/target_pages.py", _GROUP, fields="layer_names"),
    *(
        seam
        for used_in in ("engine/page_proof.py", "engine/target_pages.py")
        for impl, line, platform in (
            (f"{_CPU_ATTN}:CPUAttentionBackendImpl", "0.32", "cpu"),
            (f"{_FLASH_ATTN}:FlashAttentionImpl", None, "cuda"),
            (f"{_TRITON_ATTN}:TritonAttentionImpl", None, "cuda"),
        )
        for seam in _in(used_in, impl, "do_kv_cache_update", line=line, platform=platform)
    ),
    *_in("engine/cpu_attention.py", "vllm.config", "get_layers_from_vllm_config", platform="cpu"),
    *_in("engine/cpu_attention.py", "vllm.logger", "init_logger", platform="cpu"),
    *_in("engine/cpu_attention.py", "vllm.logger:_VllmLogger", "info_once", platform="cpu"),
    *_in(
        "engine/cpu_attention.py",
        "vllm.model_executor.layers.attention",
        "Attention",
        platform="cpu",
    ),
    *_in(
        "engine/cpu_attention.py",
        _ATTENTION,
        made="head_size kv_cache_torch_dtype num_kv_heads",
        platform="cpu",
    ),
    *_in(
        "engine/cpu_attention.py",
        _CPU_ATTN,
        "CPUAttentionBackend CPUAttentionBackendImpl CPUAttentionMetadataBuilder",
        platform="cpu",
    ),
    *_in(
        "engine/cpu_attention.py",
        f"{_CPU_ATTN}:CPUAttentionBackend",
        "get_builder_cls get_impl_cls",
        platform="cpu",
    ),
    *_in(
        "engine/cpu_attention.py",
        f"{_CPU_ATTN}:CPUAttentionMetadataBuilder",
        made="isa kv_cache_spec",
        platform="cpu",
    ),
    *_in(
        "engine/cpu_attention.py",
        "vllm.v1.kv_cache_interface:KVCacheSpec",
        fields="block_size",
        platform="cpu",
    ),
    *_in("compat/cpu_attention_0_23.py", "vllm", "_custom_ops", line="0.23", platform="cpu"),
    *_in(
        "compat/cpu_attention_0_23.py",
        _CUSTOM_OPS,
        "cpu_attn_reshape_and_cache",
        line="0.23",
        platform="cpu",
    ),
    *_in(
        "compat/cpu_attention_0_23.py",
        f"{_CUSTOM_OPS}:cpu_attn_reshape_and_cache",
        parameters="k_scale kv_cache_dtype v_scale",
        line="0.23",
        platform="cpu",
    ),
    *_in(
        "compat/cpu_attention_0_23.py",
        f"{_CPU_ATTN}:CPUAttentionBackendImpl",
        made="kv_cache_dtype",
        line="0.23",
        platform="cpu",
    ),
    *_in(
        "compat/cpu_attention_0_23.py",
        f"{_CPU_ATTN}:CPUAttentionMetadataBuilder",
        made="isa",
        line="0.23",
        platform="cpu",
    ),
    *_in(
        "compat/cpu_attention_0_23.py",
        f"{_BACKENDS}:AttentionBackend",
        "forward_includes_kv_cache_update get_impl_cls",
        line="0.23",
        platform="cpu",
    ),
    *_in(
        "compat/cpu_attention_0_23.py",
        _ATTENTION,
        made="_k_scale_float _v_scale_float",
        line="0.23",
        platform="cpu",
    ),
    *(
        seam
        for used_in, module, name in (
            ("engine/flash_attention.py", _FLASH_ATTN, "FlashAttention"),
            ("engine/triton_attention.py", _TRITON_ATTN, "TritonAttention"),
        )
        for part in (
            _in(used_in, _BACKENDS, "AttentionCGSupport", platform="cuda"),
            _in(used_in, f"{_BACKENDS}:AttentionCGSupport", "NEVER", platform="cuda"),
            _in(
                used_in, module, f"{name}Backend {name}Impl {name}MetadataBuilder", platform="cuda"
            ),
            _in(
                used_in,
                f"{module}:{name}MetadataBuilder",
                "_cudagraph_support",
                platform="cuda",
            ),
            _in(
                used_in, f"{module}:{name}Backend", "get_builder_cls get_impl_cls", platform="cuda"
            ),
        )
        for seam in part
    ),
    # ---- the target's model ----
    *_in("models/openpangu.py", "vllm.compilation.decorators", "support_torch_compile"),
    *_in(
        "models/openpangu.py",
        "vllm.compilation.decorators:support_torch_compile",
        parameters="dynamic_arg_dims",
    ),
    *_in("models/openpangu.py", "vllm.config", "VllmConfig"),
    *_in("models/openpangu.py", "vllm.distributed", "get_pp_group"),
    *_in(
        "models/openpangu.py", "vllm.distributed.parallel_state:GroupCoordinator", made="world_size"
    ),
    *_in(
        "models/openpangu.py",
        "vllm.model_executor.models.interfaces",
        "EagleModelMixin SupportsEagle3",
    ),
    *_in(
        "models/openpangu.py",
        "vllm.model_executor.models.interfaces:EagleModelMixin",
        "_maybe_add_hidden_state aux_hidden_state_layers",
    ),
    *_in("models/openpangu.py", "vllm.model_executor.models", "openpangu"),
    *_in("models/openpangu.py", _PANGU, "OpenPanguModel PanguEmbeddedForCausalLM"),
    *_in(
        "models/openpangu.py",
        f"{_PANGU}:OpenPanguModel",
        "embed_input_ids forward",
        made="layers norm",
        parameters="prefix vllm_config",
    ),
    *_in("models/openpangu.py", "vllm.sequence", "IntermediateTensors"),
    *_in("models/registration.py", "vllm", "ModelRegistry"),
    *_in("models/registration.py", "vllm:ModelRegistry", "models register_model"),
    *_in(
        "models/registration.py",
        "vllm.model_executor.models.registry:_LazyRegisteredModel",
        fields="module_name",
    ),
)
