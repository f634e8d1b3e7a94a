# SPDX-License-Identifier: Apache-2.0
"""Every name of vllm-ascend 0.23 that `engine/ascend` and `compat/ascend.py` rely on, and how.

Beside it they touch what the table of vLLM has for all platforms (`seams.py`), for vllm-ascend's
classes derive from vLLM's. Names that these set anew in constructors of their own are here.
`tests/ascend/adapter/test_seams.py` reads them off the installed source.
"""

from collections.abc import Iterator
from typing import cast, get_args

from vllm_eagle_pangu.compat.seam_entry import owned
from vllm_eagle_pangu.compat.source_seam import Kind, SourceSeam


def _seams(table: str) -> Iterator[SourceSeam]:
    """Behind an owner its names; behind a `Kind`, in capitals, what is relied on in that way."""
    for _, owner, words in owned(table):
        relied_on: dict[Kind, list[str]] = {}
        kind: Kind = "NAME"
        for word in words:
            if word in get_args(Kind):
                kind = cast(Kind, word)
                relied_on[kind] = []
            else:
                relied_on.setdefault(kind, []).append(word)
        for kind, each in relied_on.items():
            # A function's parameters are one entry: their order counts.
            entries = [" ".join(each)] if kind == "TAKES" else each
            yield from (SourceSeam(owner, entry, kind) for entry in entries)


_ATTENTION = "vllm_ascend.attention.attention_v1"
_PROPOSER = "vllm_ascend.spec_decode.llm_base_proposer:AscendSpecDecodeBaseProposer"
_RUNNER = "vllm_ascend.worker.model_runner_v1:NPUModelRunner"
_WORKER = "vllm_ascend.worker.worker:NPUWorker"

ASCEND_SEAMS = tuple(
    _seams(
        f"""
        [vllm_ascend]
        # What the platform chooses, and we put ours in place of.
        vllm_ascend.platform = NPUPlatform
        vllm_ascend.platform:NPUPlatform.get_attn_backend_cls = TAKES selected_backend
            attn_selector_config num_heads
            USES vllm_ascend.attention.attention_v1.AscendAttentionBackend
        vllm_ascend.platform:NPUPlatform.check_and_update_config = TAKES vllm_config
            USES vllm_ascend.worker.worker.NPUWorker scheduler_cls worker_cls enforce_eager
        # Refused options.
        vllm_ascend.ascend_config = get_ascend_config
        vllm_ascend.ascend_config:AscendConfig = MADE enable_async_exponential
            enable_balance_scheduling enable_hamming_sparse enable_kv_nz enable_reduce_sample
            finegrained_tp_config
        vllm_ascend.ascend_config:FinegrainedTPConfig = MADE lmhead_tensor_parallel_size
        vllm_ascend.utils = AscendDeviceType get_ascend_device_type
        vllm_ascend.utils:AscendDeviceType = A2 A3
        # The worker, which makes the runner that it finds in its module.
        vllm_ascend.worker.worker = NPUModelRunner NPUWorker
        {_WORKER} = MADE model_runner
        {_WORKER}.__init__ = TAKES vllm_config local_rank rank distributed_init_method
        {_WORKER}.init_device = TAKES USES NPUModelRunner
        {_WORKER}.initialize_from_config = TAKES kv_cache_config
        {_WORKER}.compile_or_warm_up_model = TAKES
        {_WORKER}.shutdown = TAKES
        # The runner: what we override, or call through, and in which order vllm-ascend does.
        vllm_ascend.worker.model_runner_v1 = NPUModelRunner
        {_RUNNER} = MADE drafter input_batch kv_cache_config model model_memory_usage sampler
        {_RUNNER}.__init__ = TAKES vllm_config device
        {_RUNNER}._get_drafter = TAKES
        {_RUNNER}._set_up_drafter = TAKES USES _get_drafter AscendEagleProposer
        {_RUNNER}.load_model = TAKES USES drafter
        {_RUNNER}.initialize_kv_cache = TAKES kv_cache_config USES AscendEagleProposer
        {_RUNNER}._dummy_sampler_run = TAKES hidden_states
        {_RUNNER}.execute_model = TAKES scheduler_output
            USES _prepare_inputs _build_attention_metadata update_cos_sin _model_forward
        {_RUNNER}._prepare_inputs = TAKES scheduler_output num_scheduled_tokens
            GIVES 3
            USES query_start_loc positions compute_slot_mapping discard_request_mask
        {_RUNNER}._build_attention_metadata = TAKES num_tokens num_reqs max_query_len
            GIVES 2
            USES num_scheduled_tokens_np AscendEagleProposer attn_layer_names slot_mapping
        {_RUNNER}.sample_tokens = TAKES grammar_output USES _sample _bookkeeping_sync use_eagle
        {_RUNNER}._sample = TAKES logits spec_decode_metadata
        {_RUNNER}._bookkeeping_sync = TAKES scheduler_output sampler_output GIVES 6
            USES parse_output
        {_RUNNER}.propose_draft_token_ids = TAKES valid_sampled_token_ids sampling_metadata
            scheduler_output spec_decode_metadata spec_decode_common_attn_metadata positions
            num_scheduled_tokens hidden_states aux_hidden_states sample_hidden_states
            target_model_batch_desc
        {_RUNNER}._copy_draft_token_ids_to_cpu = TAKES USES is_tensor
        # The batch, as the step's view reads it.
        vllm_ascend.worker.npu_input_batch:NPUInputBatch = MADE block_table frequency_penalties_reqs
            generators num_computed_tokens_cpu num_prompt_tokens num_tokens_no_spec
            presence_penalties_reqs repetition_penalties_reqs req_id_to_index sampling_metadata
            token_ids_cpu
        vllm_ascend.worker.block_table:BlockTable = MADE block_size block_table num_blocks_per_row
            slot_mapping
        vllm_ascend.worker.block_table:MultiGroupBlockTable = __getitem__ MADE block_tables
        # Attention.
        {_ATTENTION} = AscendAttentionBackend AscendAttentionBackendImpl
            AscendAttentionMetadataBuilder AscendAttentionState AscendMetadata
        {_ATTENTION}:AscendAttentionBackend = get_builder_cls get_impl_cls get_name
        {_ATTENTION}:AscendAttentionBackendImpl = MADE alibi_slopes key_cache kv_cache_dtype
            kv_sharing_target_layer_name scale sinks sliding_window value_cache
        {_ATTENTION}:AscendAttentionBackendImpl.__init__ = TAKES num_heads head_size scale
            num_kv_heads alibi_slopes sliding_window kv_cache_dtype logits_soft_cap attn_type
            kv_sharing_target_layer_name sinks
        {_ATTENTION}:AscendAttentionBackendImpl.forward = TAKES layer query key value kv_cache
            attn_metadata output output_scale output_block_scale
            USES reshape_and_cache
        {_ATTENTION}:AscendAttentionBackendImpl.do_kv_cache_update = TAKES layer key value kv_cache
            slot_mapping
            USES key_cache value_cache reshape_and_cache
        {_ATTENTION}:AscendAttentionMetadataBuilder.__init__ = TAKES kv_cache_spec layer_names
            vllm_config device
            USES num_speculative_tokens
        {_ATTENTION}:AscendAttentionMetadataBuilder = MADE decode_threshold reorder_batch_threshold
            speculative_config vllm_config
        {_ATTENTION}:AscendAttentionMetadataBuilder.build = TAKES common_prefix_len
            common_attn_metadata
            USES _seq_lens_cpu attn_state query_start_loc_cpu
        {_ATTENTION}:AscendAttentionState = ChunkedPrefill
        {_ATTENTION}:AscendMetadata = MADE slot_mapping
        vllm_ascend.attention.utils = AscendCommonAttentionMetadata
        vllm_ascend.attention.utils:AscendCommonAttentionMetadata = MADE attn_state
        vllm_ascend.device.device_op:BaseDeviceAdaptor.reshape_and_cache = TAKES key value key_cache
            value_cache slot_mapping
            USES _npu_reshape_and_cache
        # The head.
        vllm_ascend.ascend_forward_context = set_ascend_forward_context
        vllm_ascend.ascend_forward_context:set_ascend_forward_context = TAKES attn_metadata
            vllm_config num_tokens
            USES num_actual_tokens is_draft_model
        vllm_ascend.spec_decode = AscendEagleProposer
        vllm_ascend.spec_decode.eagle_proposer = AscendEagleProposer
        vllm_ascend.spec_decode.eagle_proposer:AscendEagleProposer.__init__ = TAKES vllm_config
            device runner
        {_PROPOSER} = _propose MADE _draft_attn_layer_names attn_layer_names model
        {_PROPOSER}.load_model = TAKES model
        {_PROPOSER}.dummy_run = TAKES num_tokens USES num_speculative_tokens
        {_PROPOSER}._run_merged_draft = TAKES USES num_speculative_tokens
        """
    )
)
