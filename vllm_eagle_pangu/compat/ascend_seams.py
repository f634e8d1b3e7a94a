# SPDX-License-Identifier: Apache-2.0
"""Every name of vllm-ascend 0.23 that `engine/ascend` and `compat/ascend.py` rely on, and how.

Beside it they touch what the table of vLLM has for all platforms (`seams.py`), for vllm-ascend's
classes derive from vLLM's. Names that these set anew in constructors of their own are here.
`tests/ascend/adapter/test_seams.py` reads them off the installed source.
"""

from collections.abc import Iterator

from vllm_eagle_pangu.compat.source_seam import SourceSeam


def _of(owner: str, has: str = "", *, made: str = "") -> Iterator[SourceSeam]:
    """Names of one module or class, apart by blanks."""
    yield from (SourceSeam(owner, name, "NAME") for name in has.split())
    yield from (SourceSeam(owner, name, "MADE") for name in made.split())


def _call(
    function: str, takes: str = "", *, gives: int | None = None, uses: str = ""
) -> Iterator[SourceSeam]:
    """What a function takes by position, how many values it returns, words in its source."""
    yield SourceSeam(function, takes, "TAKES")
    if gives is not None:
        yield SourceSeam(function, str(gives), "GIVES")
    yield from (SourceSeam(function, word, "USES") for word in uses.split())


_ATTENTION = "vllm_ascend.attention.attention_v1"
_PROPOSER = "vllm_ascend.spec_decode.llm_base_proposer:AscendSpecDecodeBaseProposer"
_RUNNER = "vllm_ascend.worker.model_runner_v1:NPUModelRunner"
_WORKER = "vllm_ascend.worker.worker:NPUWorker"

ASCEND_SEAMS: tuple[SourceSeam, ...] = (
    # What the platform chooses, and we put ours in place of.
    *_of("vllm_ascend.platform", "NPUPlatform"),
    *_call(
        "vllm_ascend.platform:NPUPlatform.get_attn_backend_cls",
        "selected_backend attn_selector_config num_heads",
        uses="vllm_ascend.attention.attention_v1.AscendAttentionBackend",
    ),
    *_call(
        "vllm_ascend.platform:NPUPlatform.check_and_update_config",
        "vllm_config",
        uses="vllm_ascend.worker.worker.NPUWorker scheduler_cls worker_cls enforce_eager",
    ),
    # Refused options.
    *_of("vllm_ascend.ascend_config", "get_ascend_config"),
    *_of(
        "vllm_ascend.ascend_config:AscendConfig",
        made="enable_async_exponential enable_balance_scheduling enable_hamming_sparse "
        "enable_kv_nz enable_reduce_sample finegrained_tp_config",
    ),
    *_of("vllm_ascend.ascend_config:FinegrainedTPConfig", made="lmhead_tensor_parallel_size"),
    *_of("vllm_ascend.utils", "AscendDeviceType get_ascend_device_type"),
    *_of("vllm_ascend.utils:AscendDeviceType", "A2 A3"),
    # The worker, which makes the runner that it finds in its module.
    *_of("vllm_ascend.worker.worker", "NPUModelRunner NPUWorker"),
    *_of(_WORKER, made="model_runner"),
    *_call(f"{_WORKER}.__init__", "vllm_config local_rank rank distributed_init_method"),
    *_call(f"{_WORKER}.init_device", uses="NPUModelRunner"),
    *_call(f"{_WORKER}.initialize_from_config", "kv_cache_config"),
    *_call(f"{_WORKER}.compile_or_warm_up_model"),
    *_call(f"{_WORKER}.shutdown"),
    # The runner: what we override, or call through, and in which order vllm-ascend does.
    *_of("vllm_ascend.worker.model_runner_v1", "NPUModelRunner"),
    *_of(_RUNNER, made="drafter input_batch kv_cache_config model model_memory_usage sampler"),
    *_call(f"{_RUNNER}.__init__", "vllm_config device"),
    *_call(f"{_RUNNER}._get_drafter"),
    *_call(f"{_RUNNER}._set_up_drafter", uses="_get_drafter AscendEagleProposer"),
    *_call(f"{_RUNNER}.load_model", uses="drafter"),
    *_call(f"{_RUNNER}.initialize_kv_cache", "kv_cache_config", uses="AscendEagleProposer"),
    *_call(f"{_RUNNER}._dummy_sampler_run", "hidden_states"),
    *_call(f"{_RUNNER}._update_states", "scheduler_output"),
    *_call(
        f"{_RUNNER}.execute_model",
        "scheduler_output",
        uses="_update_states _prepare_inputs _build_attention_metadata update_cos_sin "
        "_model_forward",
    ),
    *_call(
        f"{_RUNNER}._prepare_inputs",
        "scheduler_output num_scheduled_tokens",
        gives=3,
        uses="query_start_loc positions compute_slot_mapping discard_request_mask",
    ),
    *_call(
        f"{_RUNNER}._build_attention_metadata",
        "num_tokens num_reqs max_query_len",
        gives=2,
        uses="num_scheduled_tokens_np AscendEagleProposer attn_layer_names slot_mapping",
    ),
    *_call(f"{_RUNNER}._model_forward", "num_tokens_padded input_ids positions"),
    *_call(
        f"{_RUNNER}.sample_tokens", "grammar_output", uses="_sample _bookkeeping_sync use_eagle"
    ),
    *_call(f"{_RUNNER}._sample", "logits spec_decode_metadata"),
    *_call(
        f"{_RUNNER}._bookkeeping_sync",
        "scheduler_output sampler_output",
        gives=6,
        uses="parse_output",
    ),
    *_call(
        f"{_RUNNER}.propose_draft_token_ids",
        "valid_sampled_token_ids sampling_metadata scheduler_output spec_decode_metadata "
        "spec_decode_common_attn_metadata positions num_scheduled_tokens hidden_states "
        "aux_hidden_states sample_hidden_states target_model_batch_desc",
    ),
    *_call(f"{_RUNNER}._copy_draft_token_ids_to_cpu", uses="is_tensor"),
    # The batch, as the step's view reads it.
    *_of(
        "vllm_ascend.worker.npu_input_batch:NPUInputBatch",
        made="block_table frequency_penalties_reqs generators num_computed_tokens_cpu "
        "num_prompt_tokens num_tokens_no_spec presence_penalties_reqs repetition_penalties_reqs "
        "req_id_to_index sampling_metadata token_ids_cpu",
    ),
    *_of(
        "vllm_ascend.worker.block_table:BlockTable",
        made="block_size block_table num_blocks_per_row slot_mapping",
    ),
    *_of("vllm_ascend.worker.block_table:MultiGroupBlockTable", "__getitem__", made="block_tables"),
    # Attention.
    *_of(
        _ATTENTION,
        "AscendAttentionBackend AscendAttentionBackendImpl AscendAttentionMetadataBuilder "
        "AscendAttentionState AscendMetadata",
    ),
    *_of(f"{_ATTENTION}:AscendAttentionBackend", "get_builder_cls get_impl_cls get_name"),
    *_of(
        f"{_ATTENTION}:AscendAttentionBackendImpl",
        made="alibi_slopes key_cache kv_cache_dtype kv_sharing_target_layer_name scale sinks "
        "sliding_window value_cache",
    ),
    *_call(
        f"{_ATTENTION}:AscendAttentionBackendImpl.__init__",
        "num_heads head_size scale num_kv_heads alibi_slopes sliding_window kv_cache_dtype "
        "logits_soft_cap attn_type kv_sharing_target_layer_name sinks",
    ),
    *_call(
        f"{_ATTENTION}:AscendAttentionBackendImpl.forward",
        "layer query key value kv_cache attn_metadata output output_scale output_block_scale",
        uses="reshape_and_cache",
    ),
    *_call(
        f"{_ATTENTION}:AscendAttentionBackendImpl.do_kv_cache_update",
        "layer key value kv_cache slot_mapping",
        uses="key_cache value_cache reshape_and_cache",
    ),
    *_call(
        f"{_ATTENTION}:AscendAttentionMetadataBuilder.__init__",
        "kv_cache_spec layer_names vllm_config device",
        uses="num_speculative_tokens",
    ),
    *_of(
        f"{_ATTENTION}:AscendAttentionMetadataBuilder",
        made="decode_threshold reorder_batch_threshold speculative_config vllm_config",
    ),
    *_call(
        f"{_ATTENTION}:AscendAttentionMetadataBuilder.build",
        "common_prefix_len common_attn_metadata",
        uses="_seq_lens_cpu attn_state query_start_loc_cpu",
    ),
    *_of(f"{_ATTENTION}:AscendAttentionState", "ChunkedPrefill"),
    *_of(f"{_ATTENTION}:AscendMetadata", made="slot_mapping"),
    *_of("vllm_ascend.attention.utils", "AscendCommonAttentionMetadata"),
    *_of("vllm_ascend.attention.utils:AscendCommonAttentionMetadata", made="attn_state"),
    *_call(
        "vllm_ascend.device.device_op:BaseDeviceAdaptor.reshape_and_cache",
        "key value key_cache value_cache slot_mapping",
        uses="_npu_reshape_and_cache",
    ),
    # The head.
    *_of("vllm_ascend.ascend_forward_context", "set_ascend_forward_context"),
    *_call(
        "vllm_ascend.ascend_forward_context:set_ascend_forward_context",
        "attn_metadata vllm_config num_tokens",
        uses="num_actual_tokens is_draft_model",
    ),
    *_of("vllm_ascend.spec_decode", "AscendEagleProposer"),
    *_of("vllm_ascend.spec_decode.eagle_proposer", "AscendEagleProposer"),
    *_call(
        "vllm_ascend.spec_decode.eagle_proposer:AscendEagleProposer.__init__",
        "vllm_config device runner",
    ),
    *_of(_PROPOSER, "_propose", made="_draft_attn_layer_names attn_layer_names model"),
    *_call(f"{_PROPOSER}.load_model", "model"),
    *_call(f"{_PROPOSER}.dummy_run", "num_tokens", uses="num_speculative_tokens"),
    *_call(f"{_PROPOSER}._run_merged_draft", uses="num_speculative_tokens"),
)
