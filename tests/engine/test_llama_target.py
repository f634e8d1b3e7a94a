# SPDX-License-Identifier: Apache-2.0
"""A Llama target goes through vLLM's own taps; the tiny head is right often enough to matter."""

import pytest

from vllm_eagle_pangu.step.accept import Accepted
from vllm_eagle_pangu.step.stages import Observer

from ..tiny_pair import tiny_target, write_tiny_head

pytestmark = pytest.mark.engine

PROMPTS = [[256, 72, 101, 108, 108, 111], [256, 65], [256, *range(32, 120)]]


class AcceptedNodes(Observer):
    def __init__(self) -> None:
        self.accepted: list[int] = []

    def found(self, result) -> None:
        if isinstance(result, Accepted):
            self.accepted.append(int(result.paths.length.sum()))


@pytest.fixture(scope="module")
def llama_head(tmp_path_factory):
    """A head for the Llama target that is right more often than not."""
    return write_tiny_head(tmp_path_factory.mktemp("head") / "llama", tiny_target(bias=False))


@pytest.mark.parametrize("shape", [(1, 3, 3), (3, 3, 9)])
def test_llama_with_trees_decodes_the_tokens_of_plain_llama(
    shape, engine, tiny_llama, llama_head, tree_config_of
):
    small = {"max_model_len": 256, "max_num_batched_tokens": 64}
    with engine(tiny_llama, **small) as plain:
        expected = plain.generate(PROMPTS, max_tokens=40)
    with engine(tiny_llama, tree_config_of(llama_head, shape), **small) as trees:
        accepted = _count_accepted(trees.runner)
        assert trees.generate(PROMPTS, max_tokens=40) == expected
    assert sum(accepted) > 0


def test_seeded_sampling_repeats_itself(engine, tiny_llama, tiny_head, tree_config_of):
    small = {"max_model_len": 256}
    with engine(tiny_llama, tree_config_of(tiny_head, (3, 3, 9)), **small) as trees:
        first = trees.generate([PROMPTS[0]], max_tokens=40, temperature=1.0, seed=11)
        second = trees.generate([PROMPTS[0]], max_tokens=40, temperature=1.0, seed=11)
        other = trees.generate([PROMPTS[0]], max_tokens=40, temperature=1.0, seed=12)
    assert first == second
    assert first != other


def _count_accepted(runner) -> list[int]:
    counted = AcceptedNodes()
    runner.stages.observers += (counted,)
    return counted.accepted
