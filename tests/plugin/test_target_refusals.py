# SPDX-License-Identifier: Apache-2.0
"""A target that cannot verify trees is refused at start-up by what it is."""

import pytest

from .conftest import HIDDEN, VOCABULARY


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"sliding_window": 32}, ["sliding_window=32", "no tree attention", "another target"]),
        (
            {"layer_types": ["full_attention", "sliding_attention"] * 4, "sliding_window": 32},
            ["layer_types=['sliding_attention']", "no tree attention", "another target"],
        ),
        ({"interleaved_sliding_window": 32}, ["interleaved_sliding_window=32", "another target"]),
        ({"attention_chunk_size": 32}, ["attention_chunk_size=32", "chunked", "another target"]),
        ({"attn_logit_softcapping": 50.0}, ["attn_logit_softcapping=50.0", "does not cap"]),
        ({"param_sink_number": 4}, ["param_sink_number=4", "no attention sinks"]),
        ({"alibi": True}, ["model=", "ALiBi", "uses_alibi", "another target"]),
        ({"is_encoder_decoder": True}, ["model=", "encoder-decoder", "another target"]),
        (
            {"rope_scaling": {"rope_type": "default", "mrope_section": [2, 3, 3]}},
            ["model=", "M-RoPE", "another target"],
        ),
    ],
)
def test_a_target_whose_attention_is_no_tree_s_is_refused(
    write_target, head, build, refused, changes, parts
):
    message = refused(build(write_target(**changes), head))
    for part in parts:
        assert part in message


def test_a_window_that_no_layer_uses_is_no_reason(write_target, head, build):
    full = write_target(layer_types=["full_attention"] * 8, sliding_window=32)
    assert build(full, head).create_engine_config().speculative_config.method == "eagle3"


def test_an_mla_target_is_refused(write_target, head, build, refused, know_class):
    know_class("deepseek_v2", "DeepseekV2ForCausalLM")
    target = write_target(
        architectures=["DeepseekV2ForCausalLM"],
        model_type="deepseek_v2",
        kv_lora_rank=16,
        q_lora_rank=None,
        qk_nope_head_dim=8,
        qk_rope_head_dim=8,
        v_head_dim=16,
        n_routed_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
    )
    message = refused(build(target, head))
    assert "model=" in message and "(MLA) has no tree attention (use_mla)" in message
    assert "choose another target" in message


def test_a_target_without_taps_is_refused(write_target, head, build, refused, know_class):
    know_class("gpt2", "GPT2LMHeadModel")
    target = write_target(
        architectures=["GPT2LMHeadModel"],
        model_type="gpt2",
        n_embd=HIDDEN,
        n_layer=8,
        n_head=4,
        n_positions=512,
        vocab_size=VOCABULARY,
    )
    message = refused(build(target, head))
    assert "model=" in message
    assert "GPT2LMHeadModel does not expose the hidden states that EAGLE-3 taps" in message
    assert "choose a target that vLLM's eagle3 method serves" in message


def test_a_recurrent_target_is_refused(write_target, head, build, refused, know_class):
    know_class("mamba", "MambaForCausalLM")
    target = write_target(
        architectures=["MambaForCausalLM"],
        model_type="mamba",
        state_size=8,
        conv_kernel=4,
        expand=2,
        time_step_rank=4,
    )
    message = refused(build(target, head))
    assert "recurrent state cannot fork into branches" in message and "another target" in message


def test_a_pooling_target_is_refused(target, head, build, refused):
    message = refused(build(target, head, runner="pooling"))
    assert "runner='pooling': only text generation drafts tokens; set runner to generate" in message


@pytest.mark.parametrize("keys", [{}, {"tree_width": 2}])
def test_a_speculators_checkpoint_as_the_model_is_refused(target, write_head, build, refused, keys):
    method = {"proposal_type": "greedy", "speculative_tokens": 3}
    head = write_head(
        speculators_model_type="eagle3",
        transformer_layer_config={"model_type": "llama"},
        speculators_config={
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [method],
            "verifier": {"name_or_path": str(target), "architectures": ["LlamaForCausalLM"]},
        },
    )
    message = refused(build(head, head, keys))
    assert "method='eagle_pangu': the model given is itself a draft checkpoint" in message
    assert f"here the target is {str(target)!r}" in message
