# SPDX-License-Identifier: Apache-2.0
"""Every name of vLLM's that `engine/`, `compat/` and `models/` touch, by what has it.

`eagle-pangu doctor` names what the installed vLLM lacks of them. tests/plugin/test_seam_table.py
names that too, and what our files touch and this table lacks, and what this table has and no file
of ours touches any more.
Tables of options that we refuse are elsewhere: see `refusals.py`, `target_fit.py`.
"""

from collections.abc import Iterator

from vllm_eagle_pangu.compat import SUPPORTED
from vllm_eagle_pangu.compat.seam_entry import Kind, Seam


def _of(
    owner: str,
    has: str = "",
    *,
    made: str = "",
    fields: str = "",
    parameters: str = "",
    line: str | None = None,
    platform: str | None = None,
) -> Iterator[Seam]:
    """Names of one owner, apart by blanks; `has` are of kind NAME."""
    kinds: dict[Kind, str] = {"NAME": has, "MADE": made, "FIELD": fields, "PARAMETER": parameters}
    lines = SUPPORTED if line is None else (line,)
    for kind, names in kinds.items():
        for name in names.split():
            yield Seam(owner, name, kind, lines, platform)


SEAMS: tuple[Seam, ...] = (
    *_of("vllm", "ModelRegistry __version__ _custom_ops envs"),
    *_of("vllm:ModelRegistry", "get_supported_archs models register_model"),
    *_of("vllm._custom_ops", "rotary_embedding"),
    *_of("vllm._custom_ops", "cpu_attn_reshape_and_cache", line="0.23", platform="cpu"),
    *_of(
        "vllm._custom_ops:cpu_attn_reshape_and_cache",
        parameters="k_scale kv_cache_dtype v_scale",
        line="0.23",
        platform="cpu",
    ),
    *_of(
        "vllm._custom_ops:torch.ops._C", "fused_add_rms_norm rms_norm silu_and_mul", platform="cpu"
    ),
    *_of("vllm.compilation.decorators", "support_torch_compile"),
    *_of("vllm.compilation.decorators:support_torch_compile", parameters="dynamic_arg_dims"),
    *_of("vllm.config", "ModelConfig SpeculativeConfig VllmConfig get_layers_from_vllm_config"),
    *_of("vllm.config:AttentionConfig", fields="backend"),
    *_of("vllm.config:AttentionConfig", fields="backend_per_kind", line="0.32"),
    *_of("vllm.config:CacheConfig", fields="block_size cache_dtype kv_cache_memory_bytes"),
    *_of("vllm.config:CompilationConfig", fields="static_forward_context"),
    *_of("vllm.config:KVTransferConfig", fields="kv_connector"),
    *_of(
        "vllm.config:ModelConfig",
        "architectures get_hidden_size get_total_num_hidden_layers get_vocab_size registry",
        made="_model_info hf_config hf_text_config runner_type",
        fields="dtype enforce_eager max_model_len model seed",
    ),
    *_of("vllm.config:ParallelConfig", fields="worker_cls"),
    *_of(
        "vllm.config:SchedulerConfig",
        fields="disable_hybrid_kv_cache_manager max_num_batched_tokens max_num_scheduled_tokens "
        "max_num_seqs scheduler_cls",
    ),
    *_of(
        "vllm.config:SpeculativeConfig",
        fields="attention_backend draft_model_config draft_parallel_config max_model_len model "
        "target_model_config target_parallel_config",
    ),
    *_of("vllm.config:SpeculativeConfig", fields="kv_cache_dtype", line="0.32"),
    *_of(
        "vllm.config:VllmConfig",
        "use_v2_model_runner",
        fields="attention_config cache_config compilation_config kv_transfer_config model_config "
        "parallel_config quant_config scheduler_config speculative_config",
    ),
    *_of("vllm.distributed", "get_pp_group"),
    *_of("vllm.distributed.parallel_state:GroupCoordinator", made="world_size"),
    *_of("vllm.engine.arg_utils", "EngineArgs"),
    *_of(
        "vllm.engine.arg_utils:EngineArgs",
        "create_engine_config create_speculative_config",
        fields="async_scheduling enforce_eager model spec_method spec_model spec_tokens "
        "speculative_config",
    ),
    *_of("vllm.envs", "VLLM_USE_V2_MODEL_RUNNER"),
    *_of("vllm.forward_context", "set_forward_context"),
    *_of("vllm.forward_context:set_forward_context", parameters="num_tokens slot_mapping"),
    *_of("vllm.logger", "init_logger"),
    *_of("vllm.logger:_VllmLogger", "info info_once"),
    *_of("vllm.model_executor.layers.attention", "Attention"),
    *_of(
        "vllm.model_executor.layers.attention:Attention",
        made="head_size impl kv_cache layer_name num_heads num_kv_heads",
    ),
    *_of(
        "vllm.model_executor.layers.attention:Attention",
        made="kv_cache_torch_dtype",
        platform="cpu",
    ),
    *_of(
        "vllm.model_executor.layers.attention:Attention",
        made="_k_scale_float _v_scale_float",
        line="0.23",
        platform="cpu",
    ),
    *_of("vllm.model_executor.layers.attention_layer_base", "AttentionLayerBase"),
    *_of("vllm.model_executor.layers.attention_layer_base:AttentionLayerBase", "get_attn_backend"),
    *_of("vllm.model_executor.layers.layernorm", "RMSNorm"),
    *_of("vllm.model_executor.layers.layernorm:RMSNorm", made="variance_epsilon weight"),
    *_of("vllm.model_executor.layers.linear", "LinearBase"),
    *_of("vllm.model_executor.layers.linear:ColumnParallelLinear", made="bias"),
    *_of("vllm.model_executor.layers.linear:UnquantizedLinearMethod.create_weights", made="weight"),
    *_of("vllm.model_executor.layers.logits_processor:LogitsProcessor", made="vocab_size"),
    *_of(
        "vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors:CompressedTensorsConfig",
        made="kv_cache_scheme",
    ),
    *_of(
        "vllm.model_executor.layers.rotary_embedding.base:RotaryEmbedding",
        made="cos_sin_cache head_size is_neox_style rotary_dim",
    ),
    *_of(
        "vllm.model_executor.layers.utils:dispatch_cpu_unquantized_gemm",
        made="cpu_linear",
        platform="cpu",
    ),
    *_of("vllm.model_executor.models", "openpangu"),
    *_of("vllm.model_executor.models.interfaces", "EagleModelMixin SupportsEagle3 supports_eagle3"),
    *_of(
        "vllm.model_executor.models.interfaces:EagleModelMixin",
        "_maybe_add_hidden_state aux_hidden_state_layers",
    ),
    *_of(
        "vllm.model_executor.models.llama:LlamaAttention",
        made="attn kv_size o_proj q_size qkv_proj rotary_emb",
    ),
    *_of(
        "vllm.model_executor.models.llama:LlamaForCausalLM",
        "compute_logits register_forward_hook register_forward_pre_hook",
    ),
    *_of("vllm.model_executor.models.llama:LlamaMLP", made="down_proj gate_up_proj"),
    *_of("vllm.model_executor.models.llama_eagle3", "Eagle3LlamaForCausalLM"),
    *_of(
        "vllm.model_executor.models.llama_eagle3:Eagle3LlamaForCausalLM",
        "combine_hidden_states",
        made="draft_id_to_target_id lm_head logits_processor model",
    ),
    *_of(
        "vllm.model_executor.models.llama_eagle3:Eagle3LlamaForCausalLM.forward",
        parameters="hidden_states input_ids inputs_embeds positions",
    ),
    *_of(
        "vllm.model_executor.models.llama_eagle3:LlamaDecoderLayer",
        made="hidden_norm input_layernorm layer_idx mlp post_attention_layernorm self_attn",
    ),
    *_of(
        "vllm.model_executor.models.llama_eagle3:LlamaModel",
        made="config embed_tokens layers norm norm_output",
    ),
    *_of("vllm.model_executor.models.openpangu", "OpenPanguModel PanguEmbeddedForCausalLM"),
    *_of(
        "vllm.model_executor.models.openpangu:OpenPanguModel",
        "embed_input_ids forward",
        made="layers norm",
        parameters="prefix vllm_config",
    ),
    *_of("vllm.model_executor.models.qwen3_eagle3", "Eagle3Qwen3ForCausalLM", line="0.32"),
    *_of("vllm.model_executor.models.registry:ModelRegistry", "resolve_model_cls"),
    *_of("vllm.model_executor.models.registry:_LazyRegisteredModel", fields="module_name"),
    *_of("vllm.model_executor.models.registry:_ModelInfo", fields="architecture"),
    *_of("vllm.platforms", "current_platform"),
    *_of("vllm.platforms.interface:DeviceCapability", "major"),
    *_of("vllm.platforms.interface:Platform", "get_device_capability is_rocm", made="device_type"),
    *_of("vllm.sampling_params", "SamplingParams"),
    *_of(
        "vllm.sampling_params:SamplingParams",
        "allowed_token_ids bad_words frequency_penalty logit_bias max_tokens min_tokens "
        "presence_penalty repetition_penalty structured_outputs temperature thinking_token_budget",
    ),
    *_of("vllm.sequence", "IntermediateTensors"),
    *_of("vllm.utils", "cpu_triton_utils", line="0.23", platform="cpu"),
    *_of(
        "vllm.utils.cpu_triton_utils", "sample_recovered_tokens_kernel", line="0.23", platform="cpu"
    ),
    *_of(
        "vllm.utils.cpu_triton_utils:sample_recovered_tokens_kernel",
        "func",
        line="0.23",
        platform="cpu",
    ),
    *_of("vllm.utils.torch_utils", "kv_cache_dtype_str_to_dtype"),
    *_of("vllm.v1.attention", "selector"),
    *_of(
        "vllm.v1.attention.backend",
        "AttentionImpl AttentionMetadata AttentionMetadataBuilder CommonAttentionMetadata",
    ),
    *_of("vllm.v1.attention.backend", "AttentionCGSupport", platform="cuda"),
    *_of("vllm.v1.attention.backend:AttentionBackend", "get_name"),
    *_of(
        "vllm.v1.attention.backend:AttentionBackend",
        "forward_includes_kv_cache_update get_impl_cls",
        line="0.23",
        platform="cpu",
    ),
    *_of("vllm.v1.attention.backend:AttentionCGSupport", "NEVER", platform="cuda"),
    *_of("vllm.v1.attention.backend:AttentionImpl", "forward"),
    *_of("vllm.v1.attention.backend:AttentionMetadataBuilder", "build"),
    *_of(
        "vllm.v1.attention.backend:CommonAttentionMetadata",
        fields="block_table_tensor max_query_len max_seq_len num_actual_tokens num_reqs "
        "query_start_loc query_start_loc_cpu seq_lens slot_mapping",
    ),
    *_of(
        "vllm.v1.attention.backends.cpu_attn",
        "CPUAttentionBackend CPUAttentionBackendImpl CPUAttentionMetadataBuilder",
        platform="cpu",
    ),
    *_of(
        "vllm.v1.attention.backends.cpu_attn:CPUAttentionBackend",
        "get_builder_cls get_impl_cls",
        platform="cpu",
    ),
    *_of(
        "vllm.v1.attention.backends.cpu_attn:CPUAttentionBackendImpl",
        made="alibi_slopes kv_cache_dtype kv_sharing_target_layer_name logits_soft_cap scale "
        "sinks sliding_window",
        platform="cpu",
    ),
    *_of(
        "vllm.v1.attention.backends.cpu_attn:CPUAttentionBackendImpl",
        "do_kv_cache_update",
        line="0.32",
        platform="cpu",
    ),
    *_of(
        "vllm.v1.attention.backends.cpu_attn:CPUAttentionMetadataBuilder",
        made="isa kv_cache_spec",
        platform="cpu",
    ),
    *_of(
        "vllm.v1.attention.backends.flash_attn",
        "FlashAttentionBackend FlashAttentionImpl FlashAttentionMetadataBuilder",
        platform="cuda",
    ),
    *_of(
        "vllm.v1.attention.backends.flash_attn:FlashAttentionBackend",
        "get_builder_cls get_impl_cls",
        platform="cuda",
    ),
    *_of(
        "vllm.v1.attention.backends.flash_attn:FlashAttentionImpl",
        "do_kv_cache_update",
        made="alibi_slopes kv_cache_dtype kv_sharing_target_layer_name logits_soft_cap scale "
        "sinks sliding_window",
        platform="cuda",
    ),
    *_of(
        "vllm.v1.attention.backends.flash_attn:FlashAttentionMetadataBuilder",
        "_cudagraph_support",
        platform="cuda",
    ),
    *_of("vllm.v1.attention.backends.registry", "AttentionBackendEnum register_backend"),
    *_of(
        "vllm.v1.attention.backends.registry:AttentionBackendEnum",
        "CPU_ATTN FLASH_ATTN TRITON_ATTN get_path",
    ),
    *_of(
        "vllm.v1.attention.backends.triton_attn",
        "TritonAttentionBackend TritonAttentionImpl TritonAttentionMetadataBuilder",
        platform="cuda",
    ),
    *_of(
        "vllm.v1.attention.backends.triton_attn:TritonAttentionBackend",
        "get_builder_cls get_impl_cls",
        platform="cuda",
    ),
    *_of(
        "vllm.v1.attention.backends.triton_attn:TritonAttentionImpl",
        "do_kv_cache_update",
        made="alibi_slopes kv_cache_dtype kv_sharing_target_layer_name logits_soft_cap scale "
        "sinks sliding_window",
        platform="cuda",
    ),
    *_of(
        "vllm.v1.attention.backends.triton_attn:TritonAttentionMetadataBuilder",
        "_cudagraph_support",
        platform="cuda",
    ),
    *_of("vllm.v1.attention.selector", "_cached_get_attn_backend"),
    *_of("vllm.v1.attention.selector:_cached_get_attn_backend", "cache_clear"),
    *_of("vllm.v1.core.kv_cache_manager:KVCacheBlocks", "get_block_ids", fields="blocks"),
    *_of("vllm.v1.core.kv_cache_manager:KVCacheManager", "allocate_slots get_blocks"),
    *_of(
        "vllm.v1.core.kv_cache_manager:KVCacheManager.allocate_slots", parameters="reserved_blocks"
    ),
    *_of("vllm.v1.core.sched.output", "SchedulerOutput"),
    *_of(
        "vllm.v1.core.sched.output:CachedRequestData",
        fields="new_block_ids req_ids resumed_req_ids",
    ),
    *_of("vllm.v1.core.sched.output:NewRequestData", fields="req_id"),
    *_of(
        "vllm.v1.core.sched.output:SchedulerOutput",
        fields="finished_req_ids num_scheduled_tokens scheduled_cached_reqs scheduled_new_reqs "
        "scheduled_spec_decode_tokens total_num_scheduled_tokens",
    ),
    *_of("vllm.v1.core.sched.scheduler", "Scheduler"),
    *_of(
        "vllm.v1.core.sched.scheduler:Scheduler",
        "_update_after_schedule update_draft_token_ids",
        made="kv_cache_config kv_cache_manager max_model_len max_num_running_reqs "
        "max_num_scheduled_tokens num_lookahead_tokens num_spec_tokens requests running "
        "scheduler_config vllm_config",
    ),
    *_of("vllm.v1.core.sched.scheduler:Scheduler", made="dynamic_sd_lookup", line="0.32"),
    *_of("vllm.v1.kv_cache_interface", "KVCacheGroupSpec"),
    *_of("vllm.v1.kv_cache_interface:KVCacheConfig", fields="kv_cache_groups"),
    *_of("vllm.v1.kv_cache_interface:KVCacheGroupSpec", fields="kv_cache_spec layer_names"),
    *_of("vllm.v1.kv_cache_interface:KVCacheSpec", fields="block_size"),
    *_of("vllm.v1.outputs", "DraftTokenIds LogprobsTensors ModelRunnerOutput SamplerOutput"),
    *_of("vllm.v1.outputs:DraftTokenIds", fields="req_ids"),
    *_of(
        "vllm.v1.outputs:LogprobsTensors", fields="logprob_token_ids logprobs selected_token_ranks"
    ),
    *_of("vllm.v1.outputs:SamplerOutput", fields="logprobs_tensors sampled_token_ids"),
    *_of("vllm.v1.request", "Request"),
    *_of(
        "vllm.v1.request:Request",
        "num_output_tokens num_tokens",
        made="max_tokens num_computed_tokens request_id spec_token_ids",
    ),
    *_of("vllm.v1.sample.logits_processor", "LogitsProcessors"),
    *_of("vllm.v1.sample.logits_processor:LogitsProcessors", made="non_argmax_invariant"),
    *_of("vllm.v1.sample.logits_processor.builtin", "MinTokensLogitsProcessor"),
    *_of(
        "vllm.v1.sample.logits_processor.builtin:MinTokensLogitsProcessor",
        "apply apply_with_spec_decode is_argmax_invariant",
        made="min_toks",
    ),
    *_of("vllm.v1.sample.metadata", "SamplingMetadata"),
    *_of(
        "vllm.v1.sample.metadata:SamplingMetadata",
        fields="all_greedy allowed_token_ids_mask bad_words_token_ids frequency_penalties "
        "generators logitsprocs logprob_token_ids max_num_logprobs no_penalties output_token_ids "
        "presence_penalties prompt_token_ids repetition_penalties spec_token_ids temperature "
        "thinking_budget_state_holder top_k top_p",
    ),
    *_of("vllm.v1.sample.sampler", "Sampler"),
    *_of("vllm.v1.sample.sampler:Sampler.forward", parameters="logits sampling_metadata"),
    *_of("vllm.v1.sample.thinking_budget_state", "ThinkingBudgetStateHolder"),
    *_of(
        "vllm.v1.sample.thinking_budget_state:ThinkingBudgetStateHolder",
        "apply_to_logits has_tracked_requests update_state",
        made="_state",
    ),
    *_of("vllm.v1.spec_decode.eagle", "EagleProposer"),
    *_of(
        "vllm.v1.spec_decode.eagle:EagleProposer",
        made="_draft_attn_layer_names draft_attn_groups kv_cache_gid model vllm_config",
    ),
    *_of("vllm.v1.spec_decode.metadata", "SpecDecodeMetadata"),
    *_of("vllm.v1.utils:CpuGpuBuffer", made="gpu np"),
    *_of(
        "vllm.v1.worker.block_table:BlockTable",
        made="block_size block_table num_blocks_per_row slot_mapping",
    ),
    *_of("vllm.v1.worker.block_table:MultiGroupBlockTable", "__getitem__", made="block_tables"),
    *_of("vllm.v1.worker.cpu_model_runner", "CPUModelRunner", platform="cpu"),
    *_of("vllm.v1.worker.cpu_worker", "CPUModelRunner CPUWorker", platform="cpu"),
    *_of("vllm.v1.worker.gpu_input_batch", "InputBatch"),
    *_of(
        "vllm.v1.worker.gpu_input_batch:CachedRequestState",
        made="num_prompt_tokens",
        fields="output_token_ids prompt_token_ids sampling_params",
    ),
    *_of(
        "vllm.v1.worker.gpu_input_batch:InputBatch",
        "num_reqs req_ids",
        made="block_table frequency_penalties_reqs num_computed_tokens_cpu num_prompt_tokens "
        "num_tokens_no_spec presence_penalties_reqs repetition_penalties_reqs req_id_to_index "
        "sampling_metadata token_ids_cpu",
    ),
    *_of("vllm.v1.worker.gpu_input_batch:InputBatch", made="generators", platform="cpu"),
    *_of("vllm.v1.worker.gpu_model_runner", "GPUModelRunner"),
    *_of(
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner",
        "_build_attention_metadata _cleanup_profiling_kv_cache _dummy_run _dummy_sampler_run "
        "_input_fits_in_drafter _model_forward _prepare_inputs _sample _update_states "
        "execute_model initialize_kv_cache load_model propose_draft_token_ids sample_tokens",
        made="cache_config device discard_request_mask drafter dtype "
        "effective_drafter_max_model_len input_batch input_ids kv_cache_config max_model_len "
        "max_num_reqs max_num_tokens model model_config model_memory_usage num_spec_tokens "
        "positions query_start_loc requests sampler vllm_config",
    ),
    *_of("vllm.v1.worker.gpu_model_runner:GPUModelRunner", "_bookkeeping_sync", platform="cpu"),
    *_of("vllm.v1.worker.gpu_worker", "Worker", platform="cuda"),
    *_of(
        "vllm.v1.worker.gpu_worker:Worker",
        "compile_or_warm_up_model init_device initialize_from_config shutdown",
        made="model_runner",
    ),
    *_of("vllm.v1.worker.utils:AttentionGroup", "get_metadata_builder"),
    *_of("vllm.v1.worker.worker_base", "WorkerBase"),
)
