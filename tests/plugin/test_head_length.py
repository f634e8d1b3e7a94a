# SPDX-License-Identifier: Apache-2.0
"""`max_model_len` of a head with fewer positions than the target: a warning, raised, or refused."""

import logging

import pytest

WARNING = "vllm_eagle_pangu.engine.head_length"


def drafts_up_to(config):
    return config.speculative_config.draft_model_config.max_model_len


def test_a_short_head_is_named_once_with_both_numbers_and_the_mend(
    target, write_head, build, caplog
):
    """Regression: trees stopped at the head's positions without a word."""
    with caplog.at_level(logging.WARNING, WARNING):
        config = build(target, write_head(max_position_embeddings=64)).create_engine_config()
    assert drafts_up_to(config) == 64
    (message,) = [record.getMessage() for record in caplog.records if record.name == WARNING]
    assert "max_model_len=64" in message
    assert "max_model_len=256" in message
    assert 'set "max_model_len": 256 in speculative_config' in message


def test_a_head_as_long_as_the_target_is_no_news(target, head, build, caplog):
    with caplog.at_level(logging.WARNING, WARNING):
        build(target, head).create_engine_config()
    assert [record for record in caplog.records if record.name == WARNING] == []


@pytest.mark.parametrize("rope", [None, {"rope_type": "linear", "factor": 2.0}])
def test_a_length_beyond_the_heads_is_taken_where_the_rope_allows(target, write_head, build, rope):
    head = write_head(max_position_embeddings=64, rope_scaling=rope)
    config = build(target, head, {"max_model_len": 200}).create_engine_config()
    assert drafts_up_to(config) == 200
    draft = config.speculative_config.draft_model_config
    assert draft.hf_config.max_position_embeddings >= 200


def test_a_length_below_the_heads_is_taken(target, head, build):
    config = build(target, head, {"max_model_len": 100}).create_engine_config()
    assert drafts_up_to(config) == 100


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "dynamic", "factor": 2.0},
        {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32},
    ],
)
def test_a_rope_that_depends_on_its_length_is_not_raised(
    target, write_head, build, refused, caplog, rope
):
    head = write_head(max_position_embeddings=64, rope_scaling=rope)
    message = refused(build(target, head, {"max_model_len": 250}))
    assert "max_model_len=250: the head has " in message
    assert f"rope_type='{rope['rope_type']}'" in message
    assert 'set "max_model_len" in speculative_config to' in message
    with caplog.at_level(logging.WARNING, WARNING):
        build(target, head).create_engine_config()
    assert caplog.records[-1].getMessage().endswith("use a head for longer contexts")


@pytest.mark.parametrize("value", [0, -5, "200", 64.5, True])
def test_a_length_that_is_no_number_of_tokens_is_refused(target, head, build, refused, value):
    message = refused(build(target, head, {"max_model_len": value}))
    assert f"max_model_len={value!r}: must be a whole number of tokens; write" in message


def test_a_length_beyond_the_targets_is_refused(target, head, build, refused):
    message = refused(build(target, head, {"max_model_len": 300}))
    assert "max_model_len=300: the target's max_model_len is 256; set" in message
