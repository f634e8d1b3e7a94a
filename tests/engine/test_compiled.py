# SPDX-License-Identifier: Apache-2.0
"""The step under vLLM's default torch.compile, where intermediate buffers are reused."""

import pytest

from ..tiny_pair import tiny_target, write_tiny_head

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


def test_a_head_runs_as_it_is_over_more_rows_than_it_is_compiled_for(
    engine, tiny_pangu, tree_config_of, tmp_path
):
    """An engine on a GPU died of them: of trees for which a step had little room, a head reads all
    rows of a path. A CPU's head is compiled for any number."""
    from vllm.forward_context import get_forward_context

    # One of a single layer is not compiled on a CPU, nor called.
    head = write_tiny_head(tmp_path / "head", tiny_target(bias=True), num_hidden_layers=2)
    speculative, room, seen = tree_config_of(head, (2, 5, 6)), 16, set()
    small = {"max_model_len": 128, "max_num_batched_tokens": room, "max_num_seqs": 4}

    def look(module, args, inputs):
        more = len(inputs["input_ids"]) > room
        seen.add((more, get_forward_context().skip_compiled))

    with engine(tiny_pangu, speculative, **small) as trees:
        trees.runner.draft_head.model.register_forward_pre_hook(look, with_kwargs=True)
        trees.generate([PROMPTS[0]] * 4, max_tokens=12)
    assert seen == {(False, False), (True, True)}
