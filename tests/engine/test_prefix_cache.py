# SPDX-License-Identifier: Apache-2.0
"""With trees the prefix cache saves as much as without, and changes no token."""

import logging

import pytest
import vllm

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(
        vllm.__version__.startswith("0.23"), reason="0.23 drops a block whatever is configured"
    ),
]

BLOCK = 32
SMALL = {"max_model_len": 256, "max_num_seqs": 4, "enable_prefix_caching": True}
SMALL |= {"block_size": BLOCK}
FIRST = [*range(3, 3 + 3 * BLOCK), 7]
# The same again; one token behind a whole block; another token behind it; a part of it, with more.
AGAIN = [FIRST, [*FIRST[:-1], 8], [*FIRST[: 2 * BLOCK], 9], [*FIRST[:40], *range(150, 190)]]
CACHED = [3 * BLOCK, 3 * BLOCK, 2 * BLOCK, BLOCK]


def cached_tokens(running) -> tuple[list[int], list[list[int]]]:
    """Tokens of each prompt of `AGAIN` that the cache had, and what was decoded, one by one."""
    running.generate([FIRST], max_tokens=40)
    requests = [running.serve([prompt], max_tokens=40)[0] for prompt in AGAIN]
    return (
        [request.num_cached_tokens for request in requests],
        [list(request.outputs[0].token_ids) for request in requests],
    )


def test_as_much_of_a_prompt_is_cached_as_without_trees(
    engine, tiny_pangu, tiny_head, tree_config_of, caplog
):
    with engine(tiny_pangu, None, **SMALL) as plain:
        cached, expected = cached_tokens(plain)
    assert cached == CACHED
    with (
        caplog.at_level(logging.WARNING, "vllm"),
        engine(tiny_pangu, tree_config_of(tiny_head, (3, 3, 8)), **SMALL) as trees,
    ):
        assert cached_tokens(trees) == (cached, expected)
    assert "prefix-cache block" not in caplog.text


def test_who_asks_for_it_gets_the_last_block_computed_anew(
    engine, tiny_pangu, tiny_head, tree_config_of
):
    spec = tree_config_of(tiny_head, (3, 3, 8), disable_eagle_block_drop=False)
    with engine(tiny_pangu, spec, **SMALL) as trees:
        cached, _ = cached_tokens(trees)
    assert cached == [tokens - BLOCK for tokens in CACHED]
