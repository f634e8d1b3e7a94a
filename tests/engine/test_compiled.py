# SPDX-License-Identifier: Apache-2.0
"""The step under vLLM's default torch.compile, where intermediate buffers are reused."""

import pytest

pytestmark = pytest.mark.engine

PROMPTS = [[256, 72, 101, 108, 108, 111], [256, *range(32, 120)]]


def test_compiled_target_and_head_give_the_tokens_of_plain_decoding(
    engine, tiny_pangu, tiny_head, tree_config_of
):
    small = {"max_model_len": 256, "max_num_batched_tokens": 64}
    with engine(tiny_pangu, **small) as plain:
        expected = plain.generate(PROMPTS, max_tokens=40)
    speculative = tree_config_of(tiny_head, (3, 3, 9))
    with engine(tiny_pangu, speculative, enforce_eager=False, **small) as trees:
        assert trees.generate(PROMPTS, max_tokens=40) == expected
