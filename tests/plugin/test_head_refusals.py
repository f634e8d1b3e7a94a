# SPDX-License-Identifier: Apache-2.0
"""A head that does not fit the target is refused at start-up, before any weight is read."""

import pytest

from vllm_eagle_pangu.config import tree_config

from .conftest import DRAFT_VOCABULARY, HEAD, HEAD_SHAPES, HIDDEN, VOCABULARY

TAPS = "eagle_aux_hidden_state_layer_ids"


def without(*names):
    return {name: shape for name, shape in HEAD_SHAPES.items() if name not in names}


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        (
            {"target_hidden_size": 48},
            ["target_hidden_size=48", "hidden size is 64", "trained for this target"],
        ),
        ({"vocab_size": 300}, ["vocab_size=300", "has 512 tokens", "trained for this target"]),
        ({"draft_vocab_size": 600}, ["draft_vocab_size=600", "larger than vocab_size=512"]),
        ({TAPS: [1, 4, 9]}, [f"{TAPS}=[1, 4, 9]", "has taps 0 to 8", "name the taps"]),
        ({TAPS: [-1, 4, 6]}, [f"{TAPS}=[-1, 4, 6]", "has taps 0 to 8", "name the taps"]),
        ({TAPS: [1, 4, 4]}, [f"{TAPS}=[1, 4, 4]", "taps repeat", "name the taps"]),
        ({TAPS: [1, 4, "6"]}, [f"{TAPS}=[1, 4, '6']", "taps are layer numbers"]),
        ({TAPS: 3}, [f"{TAPS}=3", "taps are a list", "name the taps"]),
        ({TAPS: [1, 4]}, [f"{TAPS}=[1, 4]", "for 3 taps", '"num_aux_hidden_states" to 2']),
        (
            {TAPS: None, "eagle_config": {TAPS: [1, 99]}},
            [f"{TAPS}=[1, 99]", "has taps 0 to 8", "name the taps"],
        ),
        (
            {"eagle_config": {"use_aux_hidden_state": False}},
            ["use_aux_hidden_state=False", "reads no taps", "use an EAGLE-3 head"],
        ),
        (
            {"layer_types": ["sliding_attention"]},
            ["sliding_window=None", "names sliding_attention", "name the window"],
        ),
        (
            {"layer_types": ["sliding_attention", "full_attention"], "num_hidden_layers": 2}
            | {"sliding_window": 16},
            [
                "layer_types=['sliding_attention', 'full_attention']",
                "drafts from one group",
                "pass --disable-hybrid-kv-cache-manager",
            ],
        ),
        (
            {"layer_types": ["chunked_attention"], "attention_chunk_size": 16},
            ["layer_types=['chunked_attention']", "full_attention or sliding", "another head"],
        ),
        ({"attention_chunk_size": 16}, ["attention_chunk_size=16", "use another head"]),
        ({"attn_logit_softcapping": 30.0}, ["attn_logit_softcapping=30.0", "use another head"]),
        ({"fc_norm": True}, ["fc_norm=True", "has no weights fc_norm.*", "as it was trained"]),
        (
            {"norm_before_fc": True},
            ["norm_before_fc=True", "has no weights input_norm.*", "as it was trained"],
        ),
    ],
)
def test_a_head_whose_config_does_not_fit_is_refused(
    target, write_head, build, refused, changes, parts
):
    message = refused(build(target, write_head(**changes)))
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("shapes", "parts"),
    [
        (
            HEAD_SHAPES | {"fc.weight": (HIDDEN, 2 * HIDDEN)},
            ["fc.weight=(64, 128)", "ask for (64, 192)", "name in the head's config.json the taps"],
        ),
        (without("fc.weight"), ["model=", "no fc weight, so it is no EAGLE-3 head", "set"]),
        (without("d2t"), [f"draft_vocab_size={DRAFT_VOCABULARY}", "d2t has shape None", "export"]),
        (
            HEAD_SHAPES | {"d2t": (100,)},
            [f"draft_vocab_size={DRAFT_VOCABULARY}", "shape (100,), not (128,)", "mend"],
        ),
        (
            HEAD_SHAPES | {"lm_head.weight": (100, HIDDEN)},
            [f"draft_vocab_size={DRAFT_VOCABULARY}", "lm_head has 100 rows", "mend"],
        ),
        (
            HEAD_SHAPES | {"input_norm.weight": (3 * HIDDEN,)},
            ["norm_before_fc=False", "has weights input_norm.*", 'set "norm_before_fc"'],
        ),
        (
            HEAD_SHAPES | {f"fc_norm.{tap}.weight": (HIDDEN,) for tap in range(3)},
            ["fc_norm=False", "has weights fc_norm.*", 'set "fc_norm"'],
        ),
        (
            HEAD_SHAPES | {f"layers.{i}.mlp.up_proj.weight": (128, HIDDEN) for i in range(2)},
            ["num_hidden_layers=1", "the layers [0, 1]", "mend num_hidden_layers"],
        ),
        (without("lm_head.weight"), ["draft_vocab_size=128", "lm_head has 512 rows", "mend"]),
    ],
)
def test_a_head_whose_weights_do_not_fit_is_refused(
    target, write_head, build, refused, shapes, parts
):
    message = refused(build(target, write_head(shapes)))
    for part in parts:
        assert part in message


def test_a_full_draft_vocabulary_with_a_map_is_refused(target, write_head, build, refused):
    message = refused(build(target, write_head(draft_vocab_size=VOCABULARY)))
    assert f"draft_vocab_size={VOCABULARY}: the head has a vocabulary map d2t" in message
    assert "to 128, or drop d2t" in message


def test_a_narrower_head_that_shares_embeddings_is_refused(target, write_head, build, refused):
    shapes = without("embed_tokens.weight") | {"fc.weight": (32, 3 * HIDDEN)}
    folder = write_head(shapes, hidden_size=32, target_hidden_size=HIDDEN)
    message = refused(build(target, folder))
    assert "hidden_size=32: the head has no embed_tokens" in message
    assert "whose hidden size is 64; use a head" in message


def test_default_taps_that_collide_are_refused(write_target, write_head, build, refused):
    message = refused(build(write_target(num_hidden_layers=5), write_head(**{TAPS: None})))
    assert f"{TAPS}=[2, 2, 2]: taps repeat on a target of 5 layers (vLLM's default" in message
    assert "name the taps the head was trained with in its config.json" in message


def test_a_tree_wider_than_the_draft_vocabulary_is_refused(target, write_head, build, refused):
    folder = write_head({}, draft_vocab_size=3)
    message = refused(build(target, folder, {"tree_width": 4}))
    assert (
        'tree_width=4: the head\'s draft vocabulary has 3 tokens; set "tree_width" to 3' in message
    )


def speculators(algorithm: str, **config) -> dict:
    """What turns the head's config.json into the speculators format."""
    return {
        "architectures": ["Eagle3DraftModel"],
        "model_type": None,
        "speculators_model_type": algorithm,
        "transformer_layer_config": HEAD | {"model_type": "llama"},
        "speculators_config": {
            "algorithm": algorithm,
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
            "verifier": {"name_or_path": "any", "architectures": ["LlamaForCausalLM"]},
        },
    } | config


def test_a_head_in_the_speculators_format_is_accepted(target, write_head, build):
    folder = write_head(**speculators("eagle3"))
    config = build(target, folder).create_engine_config()
    assert config.speculative_config.draft_model_config.architectures == ["Eagle3LlamaForCausalLM"]


MASKED = HEAD_SHAPES | {"mask_hidden": (1, 3 * HIDDEN)}


@pytest.mark.parametrize(
    ("shapes", "changes", "spec", "parts"),
    [
        (HEAD_SHAPES, {}, {"parallel_drafting": True}, ["mask_hidden=None", "a P-EAGLE head"]),
        (
            HEAD_SHAPES,
            speculators("peagle", mask_token_id=1),
            {},
            ["mask_hidden=None", "the checkpoint has none", "a P-EAGLE head"],
        ),
        (
            MASKED,
            {"ptd_token_id": 1},
            {"parallel_drafting": False},
            ["parallel_drafting=False", "all levels at once", 'remove "parallel_drafting"'],
        ),
        (MASKED, {}, {}, ["ptd_token_id=None", "vocabulary of 512", "name the one"]),
        (MASKED, {"ptd_token_id": 512}, {}, ["ptd_token_id=512", "vocabulary of 512"]),
        (
            HEAD_SHAPES | {"mask_hidden": (1, 1, 2 * HIDDEN)},
            {"mask_token_id": 1},
            {},
            ["mask_hidden=(1, 1, 128)", "ask for 192 numbers", "export the head"],
        ),
    ],
)
def test_a_parallel_head_that_lacks_its_mask_is_refused(
    target, write_head, build, refused, shapes, changes, spec, parts
):
    message = refused(build(target, write_head(shapes, **changes), spec))
    for part in parts:
        assert part in message


@pytest.mark.parametrize("changes", [{"ptd_token_id": 511}, speculators("peagle", mask_token_id=1)])
@pytest.mark.parametrize("spec", [{}, {"parallel_drafting": True}])
def test_a_parallel_head_is_accepted_whether_it_is_named_so_or_not(
    target, write_head, build, changes, spec
):
    config = build(target, write_head(MASKED, **changes), spec).create_engine_config()
    # vLLM would make room for the masks of its chains.
    assert not config.speculative_config.parallel_drafting


def test_an_mla_head_is_refused(target, write_head, build, refused, know_class):
    know_class("deepseek_eagle3", "Eagle3DeepseekV2ForCausalLM")
    message = refused(build(target, write_head(architectures=["Eagle3DeepseekV2ForCausalLM"])))
    assert "architectures=['Eagle3DeepseekV2ForCausalLM']" in message
    assert "no EAGLE-3 head with Llama or Qwen3 layers; set" in message


@pytest.mark.parametrize("architectures", [["Qwen2ForCausalLM"], ["PEagleDraftModel"], []])
def test_a_model_that_is_no_head_is_refused(target, write_head, build, refused, architectures):
    message = refused(build(target, write_head(architectures=architectures)))
    assert f"architectures={architectures!r}: config.json of" in message
    assert "names no EAGLE-3 head that vLLM knows" in message
    assert 'set "model" in speculative_config to the folder or hub name' in message


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {TAPS: None},
        {TAPS: None, "eagle_config": {TAPS: [0, 3, 8]}},
        {"num_aux_hidden_states": 3, "target_hidden_size": HIDDEN},
        {"layer_types": ["sliding_attention"], "sliding_window": 16},
        {"layer_types": ["full_attention"], "sliding_window": 16},
        {"sliding_window": 16},
        {"norm_before_residual": True, "norm_output": True},
    ],
)
def test_a_head_that_fits_is_accepted(target, write_head, build, changes):
    assert tree_config(build(target, write_head(**changes)).create_engine_config()) is not None


def test_a_head_with_layers_of_both_kinds_is_accepted_in_one_cache_group(target, write_head, build):
    kinds = ["sliding_attention", "full_attention"]
    head = write_head(layer_types=kinds, sliding_window=16, num_hidden_layers=2)
    args = build(target, head, disable_hybrid_kv_cache_manager=True)
    assert tree_config(args.create_engine_config()) is not None


def test_a_head_without_local_weights_is_left_to_vllm(target, write_head, build):
    assert tree_config(build(target, write_head({})).create_engine_config()) is not None
