# SPDX-License-Identifier: Apache-2.0
"""A policy may choose another shape each step, up to the configured one, and no token changes."""

import itertools

import pytest

from vllm_eagle_pangu.core.shape import TreeShape

pytestmark = pytest.mark.engine

SHAPES = [TreeShape(*shape) for shape in ((4, 4, 16), (1, 2, 2), (3, 2, 6), (2, 4, 9), (1, 1, 1))]


class Cycle:
    def __init__(self) -> None:
        self.shapes = itertools.cycle(SHAPES)
        self.chosen = []

    def shape(self, batch_size):
        self.chosen.append(next(self.shapes))
        return self.chosen[-1]


def test_shapes_that_change_every_step_change_no_token(
    engine, tiny_pangu, tiny_head, tree_config_of
):
    prompts = [list(b"the quick brown fox"), list(b"over"), list(range(40, 140)), [3, 4]]
    small = {"max_model_len": 256, "max_num_batched_tokens": 64, "max_num_seqs": 3}
    with engine(tiny_pangu, None, **small) as plain:
        expected = plain.generate(prompts, max_tokens=30)
    with engine(tiny_pangu, tree_config_of(tiny_head, (4, 4, 16)), **small) as trees:
        policy = trees.runner.tree_policy = Cycle()
        assert trees.generate(prompts, max_tokens=30) == expected
    assert set(policy.chosen) == set(SHAPES)
