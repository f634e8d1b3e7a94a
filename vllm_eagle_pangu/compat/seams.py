# SPDX-License-Identifier: Apache-2.0
"""Every name of vLLM's that `engine/`, `compat/` and `models/` touch, by what has it.

`eagle-pangu doctor` names what the installed vLLM lacks of them. tests/plugin/test_seam_table.py
names that too, and what our files touch and this table lacks, and what this table has and no file
of ours touches any more.
Tables of options that we refuse are elsewhere: see `refusals.py`, `target_fit.py`.
"""

from collections.abc import Iterator

from vllm_eagle_pangu.compat import SUPPORTED
from vllm_eagle_pangu.compat.seam_entry import Seam, owned

# A section names the line of vLLM and the platform that have what follows, but where all have.
_TABLE = """
    [vllm]
    vllm = ModelRegistry __version__ _custom_ops envs
    vllm._custom_ops = rotary_embedding
    vllm.compilation.decorators = support_torch_compile
    vllm.config = ModelConfig SpeculativeConfig VllmConfig get_layers_from_vllm_config
    vllm.config:AttentionConfig = backend
    vllm.config:CacheConfig = block_size cache_dtype kv_cache_memory_bytes
    vllm.config:CompilationConfig = cudagraph_capture_sizes static_forward_context
    vllm.config:KVTransferConfig = kv_connector
    vllm.config:LoadConfig = load_format
    vllm.config:ModelConfig = _model_info architectures dtype enforce_eager get_hidden_size
        get_total_num_hidden_layers get_vocab_size hf_config hf_text_config max_model_len model
        quantization registry revision runner_type seed
    vllm.config:ParallelConfig = worker_cls
    vllm.config:SchedulerConfig = disable_hybrid_kv_cache_manager enable_chunked_prefill
        max_num_batched_tokens max_num_scheduled_tokens max_num_seqs scheduler_cls
    vllm.config:SpeculativeConfig = attention_backend draft_model_config draft_parallel_config
        max_model_len model parallel_drafting target_model_config target_parallel_config
    vllm.config:VllmConfig = attention_config cache_config compilation_config kv_transfer_config
        load_config model_config parallel_config quant_config scheduler_config speculative_config
        use_v2_model_runner
    vllm.distributed = get_pp_group
    vllm.distributed.parallel_state:GroupCoordinator = world_size
    vllm.engine.arg_utils = EngineArgs
    vllm.engine.arg_utils:EngineArgs = async_scheduling create_engine_config
        create_speculative_config enforce_eager model spec_method spec_model spec_tokens
        speculative_config
    vllm.envs = VLLM_USE_V2_MODEL_RUNNER
    vllm.forward_context = set_forward_context
    vllm.forward_context:set_forward_context = num_tokens skip_compiled slot_mapping
    vllm.logger = init_logger
    vllm.logger:_VllmLogger = info info_once warning warning_once
    vllm.model_executor.layers.attention = Attention
    vllm.model_executor.layers.attention:Attention = head_size impl kv_cache layer_name num_heads
        num_kv_heads
    vllm.model_executor.layers.attention_layer_base = AttentionLayerBase
    vllm.model_executor.layers.attention_layer_base:AttentionLayerBase = get_attn_backend
    vllm.model_executor.layers.layernorm = RMSNorm
    vllm.model_executor.layers.layernorm:RMSNorm = variance_epsilon weight
    vllm.model_executor.layers.linear = LinearBase
    vllm.model_executor.layers.linear:ColumnParallelLinear = bias
    vllm.model_executor.layers.linear:UnquantizedLinearMethod.create_weights = weight
    vllm.model_executor.layers.logits_processor:LogitsProcessor = vocab_size
    vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors:CompressedTensorsConfig=
        kv_cache_scheme
    vllm.model_executor.layers.rotary_embedding.base:RotaryEmbedding = cos_sin_cache head_size
        is_neox_style rotary_dim
    vllm.model_executor.models = openpangu
    vllm.model_executor.models.interfaces = EagleModelMixin SupportsEagle3 supports_eagle3
    vllm.model_executor.models.interfaces:EagleModelMixin = _maybe_add_hidden_state
        aux_hidden_state_layers
    vllm.model_executor.models.llama:LlamaAttention = attn kv_size o_proj q_size qkv_proj rotary_emb
    vllm.model_executor.models.llama:LlamaForCausalLM = compute_logits register_forward_hook
        register_forward_pre_hook
    vllm.model_executor.models.llama:LlamaMLP = down_proj gate_up_proj
    vllm.model_executor.models.llama_eagle3 = Eagle3LlamaForCausalLM
    vllm.model_executor.models.llama_eagle3:Eagle3LlamaForCausalLM = combine_hidden_states
        draft_id_to_target_id lm_head logits_processor mask_hidden model
    vllm.model_executor.models.llama_eagle3:Eagle3LlamaForCausalLM.forward = hidden_states input_ids
        inputs_embeds positions
    vllm.model_executor.models.llama_eagle3:LlamaDecoderLayer = hidden_norm input_layernorm
        layer_idx mlp post_attention_layernorm self_attn
    vllm.model_executor.models.llama_eagle3:LlamaModel = config embed_tokens layers norm norm_output
    vllm.model_executor.models.openpangu = OpenPanguModel PanguEmbeddedForCausalLM
    vllm.model_executor.models.openpangu:OpenPanguModel = embed_input_ids forward layers norm
    vllm.model_executor.models.openpangu:OpenPanguModel.__init__ = prefix vllm_config
    vllm.model_executor.models.registry:ModelRegistry = resolve_model_cls
    vllm.model_executor.models.registry:_LazyRegisteredModel = module_name
    vllm.model_executor.models.registry:_ModelInfo = architecture
    vllm.platforms = current_platform
    vllm.platforms.interface:DeviceCapability = major
    vllm.platforms.interface:Platform = device_type get_device_capability is_rocm
    vllm.sampling_params = SamplingParams
    vllm.sampling_params:SamplingParams = allowed_token_ids bad_words frequency_penalty logit_bias
        max_tokens min_tokens presence_penalty repetition_penalty structured_outputs temperature
        thinking_token_budget
    vllm.sequence = IntermediateTensors
    vllm.utils = length_from_prompt_token_ids_or_embeds
    vllm.utils.torch_utils = kv_cache_dtype_str_to_dtype
    vllm.v1.attention = selector
    vllm.v1.attention.backend = AttentionImpl AttentionMetadata AttentionMetadataBuilder
        CommonAttentionMetadata
    vllm.v1.attention.backend:AttentionBackend = get_name
    vllm.v1.attention.backend:AttentionImpl = forward
    vllm.v1.attention.backend:AttentionMetadataBuilder = build
    vllm.v1.attention.backend:CommonAttentionMetadata = block_table_tensor max_query_len max_seq_len
        num_actual_tokens num_reqs query_start_loc query_start_loc_cpu seq_lens slot_mapping
    vllm.v1.attention.backends.registry = AttentionBackendEnum register_backend
    vllm.v1.attention.backends.registry:AttentionBackendEnum = CPU_ATTN FLASH_ATTN TRITON_ATTN
        get_path
    vllm.v1.attention.selector = _cached_get_attn_backend
    vllm.v1.attention.selector:_cached_get_attn_backend = cache_clear
    vllm.v1.core.kv_cache_manager:KVCacheBlocks = blocks get_block_ids
    vllm.v1.core.kv_cache_manager:KVCacheManager = allocate_slots get_blocks
    vllm.v1.core.kv_cache_manager:KVCacheManager.allocate_slots = reserved_blocks
    vllm.v1.core.sched.output = SchedulerOutput
    vllm.v1.core.sched.output:CachedRequestData = new_block_ids num_computed_tokens req_ids
        resumed_req_ids
    vllm.v1.core.sched.output:NewRequestData = num_computed_tokens prompt_embeds prompt_token_ids
        req_id sampling_params
    vllm.v1.core.sched.output:SchedulerOutput = finished_req_ids num_scheduled_tokens
        scheduled_cached_reqs scheduled_new_reqs scheduled_spec_decode_tokens
        total_num_scheduled_tokens
    vllm.v1.core.sched.request_queue:RequestQueue = peek_request
    vllm.v1.core.sched.scheduler = Scheduler
    vllm.v1.core.sched.scheduler:Scheduler = _update_after_schedule kv_cache_config kv_cache_manager
        max_model_len max_num_running_reqs max_num_scheduled_tokens num_lookahead_tokens
        num_spec_tokens requests running scheduler_config update_draft_token_ids vllm_config waiting
    vllm.v1.engine = EngineCoreRequestType
    vllm.v1.engine.core = EngineCoreProc
    vllm.v1.engine.core:EngineCoreProc = collective_rpc input_queue post_step scheduler
    vllm.v1.engine:EngineCoreRequestType = ADD
    vllm.v1.kv_cache_interface = KVCacheGroupSpec
    vllm.v1.kv_cache_interface:KVCacheConfig = kv_cache_groups
    vllm.v1.kv_cache_interface:KVCacheGroupSpec = kv_cache_spec layer_names
    vllm.v1.kv_cache_interface:KVCacheSpec = block_size
    vllm.v1.outputs = DraftTokenIds LogprobsTensors ModelRunnerOutput SamplerOutput
    vllm.v1.outputs:DraftTokenIds = req_ids
    vllm.v1.outputs:LogprobsTensors = logprob_token_ids logprobs selected_token_ranks
    vllm.v1.outputs:SamplerOutput = logprobs_tensors sampled_token_ids
    vllm.v1.request = Request
    vllm.v1.request:Request = max_tokens num_computed_tokens num_output_tokens num_tokens request_id
        spec_token_ids
    vllm.v1.sample.logits_processor = LogitsProcessors
    vllm.v1.sample.logits_processor.builtin = MinTokensLogitsProcessor
    vllm.v1.sample.logits_processor.builtin:MinTokensLogitsProcessor = apply apply_with_spec_decode
        is_argmax_invariant min_toks
    vllm.v1.sample.logits_processor:LogitsProcessors = non_argmax_invariant
    vllm.v1.sample.metadata = SamplingMetadata
    vllm.v1.sample.metadata:SamplingMetadata = all_greedy allowed_token_ids_mask bad_words_token_ids
        frequency_penalties generators logitsprocs logprob_token_ids max_num_logprobs no_penalties
        output_token_ids presence_penalties prompt_token_ids repetition_penalties spec_token_ids
        temperature thinking_budget_state_holder top_k top_p
    vllm.v1.sample.sampler = Sampler
    vllm.v1.sample.sampler:Sampler.forward = logits sampling_metadata
    vllm.v1.sample.thinking_budget_state = ThinkingBudgetStateHolder
    vllm.v1.sample.thinking_budget_state:ThinkingBudgetStateHolder = _state apply_to_logits
        has_tracked_requests update_state
    vllm.v1.spec_decode.eagle = EagleProposer
    vllm.v1.spec_decode.eagle:EagleProposer = _create_draft_vllm_config _draft_attn_layer_names
        draft_attn_groups draft_model_config hidden_size kv_cache_gid model vllm_config
    vllm.v1.spec_decode.metadata = SpecDecodeMetadata
    vllm.v1.utils:CpuGpuBuffer = gpu np
    vllm.v1.worker.block_table:BlockTable = block_size block_table num_blocks_per_row slot_mapping
    vllm.v1.worker.block_table:MultiGroupBlockTable = __getitem__ block_tables
    vllm.v1.worker.gpu_input_batch = InputBatch
    vllm.v1.worker.gpu_input_batch:CachedRequestState = num_prompt_tokens num_tokens
        output_token_ids prompt_token_ids sampling_params
    vllm.v1.worker.gpu_input_batch:InputBatch = block_table frequency_penalties_reqs
        num_computed_tokens_cpu num_prompt_tokens num_reqs num_tokens_no_spec
        presence_penalties_reqs repetition_penalties_reqs req_id_to_index req_ids sampling_metadata
        token_ids_cpu
    vllm.v1.worker.gpu_model_runner = GPUModelRunner
    vllm.v1.worker.gpu_model_runner:GPUModelRunner = _build_attention_metadata
        _cleanup_profiling_kv_cache _draft_token_ids _dummy_run _dummy_sampler_run
        _input_fits_in_drafter _prepare_inputs _sample cache_config device discard_request_mask
        drafter dtype effective_drafter_max_model_len execute_model initialize_kv_cache input_batch
        input_ids kv_cache_config load_model max_model_len max_num_reqs max_num_tokens model
        model_config model_memory_usage num_spec_tokens positions propose_draft_token_ids
        query_start_loc requests sample_tokens sampler speculative_config take_draft_token_ids
        vllm_config
    vllm.v1.worker.gpu_worker:Worker = compile_or_warm_up_model init_device initialize_from_config
        model_runner shutdown
    vllm.v1.worker.utils:AttentionGroup = get_metadata_builder
    vllm.v1.worker.worker_base = WorkerBase
    vllm:ModelRegistry = get_supported_archs models register_model

    [vllm 0.32]
    vllm.config:AttentionConfig = backend_per_kind
    vllm.config:SpeculativeConfig = kv_cache_dtype
    vllm.model_executor.models.qwen3_eagle3 = Eagle3Qwen3ForCausalLM
    vllm.v1.core.sched.scheduler:Scheduler = dynamic_sd_lookup

    [vllm cuda]
    vllm.config = CUDAGraphMode
    vllm.config:CUDAGraphMode = NONE
    vllm.config:CompilationConfig = cudagraph_mode
    vllm.v1.attention.backend = AttentionCGSupport
    vllm.v1.attention.backend:AttentionCGSupport = NEVER
    vllm.v1.attention.backends.flash_attn = FlashAttentionBackend
    vllm.v1.attention.backends.flash_attn:FlashAttentionBackend = get_builder_cls get_impl_cls
    vllm.v1.attention.backends.flash_attn:FlashAttentionImpl = alibi_slopes do_kv_cache_update
        kv_cache_dtype kv_sharing_target_layer_name logits_soft_cap scale sinks sliding_window
    vllm.v1.attention.backends.flash_attn:FlashAttentionMetadataBuilder = _cudagraph_support
    vllm.v1.attention.backends.triton_attn = TritonAttentionBackend
    vllm.v1.attention.backends.triton_attn:TritonAttentionBackend = get_builder_cls get_impl_cls
    vllm.v1.attention.backends.triton_attn:TritonAttentionImpl = alibi_slopes do_kv_cache_update
        kv_cache_dtype kv_sharing_target_layer_name logits_soft_cap scale sinks sliding_window
    vllm.v1.attention.backends.triton_attn:TritonAttentionMetadataBuilder = _cudagraph_support
    vllm.v1.worker.gpu_worker = Worker

    [vllm cpu]
    vllm._custom_ops:torch.ops._C = fused_add_rms_norm rms_norm silu_and_mul
    vllm.model_executor.layers.attention:Attention = kv_cache_torch_dtype
    vllm.model_executor.layers.utils:dispatch_cpu_unquantized_gemm = cpu_linear
    vllm.v1.attention.backends.cpu_attn = CPUAttentionBackend CPUAttentionBackendImpl
        CPUAttentionMetadataBuilder
    vllm.v1.attention.backends.cpu_attn:CPUAttentionBackend = get_builder_cls get_impl_cls
    vllm.v1.attention.backends.cpu_attn:CPUAttentionBackendImpl = alibi_slopes kv_cache_dtype
        kv_sharing_target_layer_name logits_soft_cap scale sinks sliding_window
    vllm.v1.attention.backends.cpu_attn:CPUAttentionMetadataBuilder = isa kv_cache_spec
    vllm.v1.worker.cpu_model_runner = CPUModelRunner
    vllm.v1.worker.cpu_worker = CPUModelRunner CPUWorker
    vllm.v1.worker.gpu_input_batch:InputBatch = generators

    [vllm 0.32 cpu]
    vllm.v1.attention.backends.cpu_attn:CPUAttentionBackendImpl = do_kv_cache_update

    [vllm 0.23 cpu]
    vllm._custom_ops = cpu_attn_reshape_and_cache
    vllm._custom_ops:cpu_attn_reshape_and_cache = k_scale kv_cache_dtype v_scale
    vllm.model_executor.layers.attention:Attention = _k_scale_float _v_scale_float
    vllm.utils = cpu_triton_utils
    vllm.utils.cpu_triton_utils = sample_recovered_tokens_kernel
    vllm.utils.cpu_triton_utils:sample_recovered_tokens_kernel = func
    vllm.v1.attention.backend:AttentionBackend = forward_includes_kv_cache_update get_impl_cls
    """


def _seams() -> Iterator[Seam]:
    for section, owner, names in owned(_TABLE):
        _, *said = section.split()
        lines = tuple(word for word in said if word in SUPPORTED) or SUPPORTED
        platform = next((word for word in said if word not in SUPPORTED), None)
        yield from (Seam(owner, name, lines, platform) for name in names)


SEAMS = tuple(_seams())
