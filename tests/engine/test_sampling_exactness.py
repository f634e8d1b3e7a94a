# SPDX-License-Identifier: Apache-2.0
"""Sampling with trees draws from the target's distribution; benchmarks/sampling.py has more."""

from collections import Counter

import pytest

pytestmark = pytest.mark.engine

# vLLM's CPU sampler sorts the vocabulary of every tree row: a small tree keeps this short.
DRAWS = 2500


@pytest.fixture(scope="module")
def draws(engine, pair, heldout_prompts, tree_config_of, shapes):
    """Counts of (second, third) tokens: plain with two seeds, and with trees, per temperature."""
    prompt = sorted(heldout_prompts, key=len)[len(heldout_prompts) // 3][:8]
    settings = {0.8: {"top_p": 0.9}, 1.2: {"top_k": 20}}

    def run(speculative, seed):
        args = {"max_num_seqs": 128, "max_num_batched_tokens": 2304, "seed": seed}
        with engine(pair[0], speculative, **args) as running:
            greedy = running.generate([prompt], max_tokens=2)[0]
            counts = {}
            for temperature, limits in settings.items():
                outputs = running.generate(
                    [[*prompt, greedy[0]]] * DRAWS, temperature=temperature, max_tokens=3, **limits
                )
                counts[temperature] = Counter(tuple(output[1:]) for output in outputs)
            return counts

    return run(None, 1), run(None, 2), run(tree_config_of(pair[1], shapes["narrow"]), 3)


def _total_variation(left: Counter, right: Counter) -> float:
    return sum(abs(left[key] - right[key]) for key in left.keys() | right.keys()) / (2 * DRAWS)


@pytest.mark.parametrize("temperature", [0.8, 1.2])
def test_tree_draws_differ_from_plain_no_more_than_two_plain_runs_do(draws, temperature):
    first, second, trees = (counts[temperature] for counts in draws)
    noise = _total_variation(first, second)
    assert len(first) > 3, "the prompt must leave something to sample"
    assert _total_variation(first, trees) < 1.15 * noise + 0.01
