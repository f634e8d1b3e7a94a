# SPDX-License-Identifier: Apache-2.0
"""Sampling with trees draws from the target's distribution; benchmarks/sampling.py has more."""

from collections import Counter

import pytest
import vllm

pytestmark = pytest.mark.engine

DRAWS = 1600


@pytest.fixture(scope="module")
def draws(engine, pair, heldout_prompts, tree_config_of, shapes):
    """Counts of (second, third) tokens per temperature: of plain decoding with two seeds, and of
    trees of a fixed shape and of adaptive ones."""
    prompt = sorted(heldout_prompts, key=len)[len(heldout_prompts) // 3][:8]
    settings = {0.8: {"top_p": 0.9}, 1.2: {"top_k": 20}}

    def run(speculative, seed):
        args = {"max_num_seqs": 128, "max_num_batched_tokens": 2304, "seed": seed}
        with engine(pair[0], speculative, **args) as running:
            counts = {}
            for temperature, limits in settings.items():
                outputs = running.generate(
                    [prompt] * DRAWS, temperature=temperature, max_tokens=3, **limits
                )
                counts[temperature] = Counter(tuple(output[1:]) for output in outputs)
            return counts

    fixed = tree_config_of(pair[1], shapes["default"])
    return run(None, 1), run(None, 2), run(fixed, 3), run(fixed | {"tree_policy": "adaptive"}, 4)


def _total_variation(left: Counter, right: Counter) -> float:
    return sum(abs(left[key] - right[key]) for key in left.keys() | right.keys()) / (2 * DRAWS)


@pytest.mark.parametrize("temperature", [0.8, 1.2])
def test_tree_draws_differ_from_plain_no_more_than_two_plain_runs_do(draws, temperature):
    first, second, *trees = (counts[temperature] for counts in draws)
    noise = _total_variation(first, second)
    assert len(first) > 3, "the prompt must leave something to sample"
    for each in trees:
        assert _total_variation(first, each) < 1.15 * noise + 0.01


seeds_need_vllm_0_32 = pytest.mark.skipif(
    vllm.__version__.startswith("0.23"),
    reason="vLLM 0.23's CPU sampler ignores seeds unless every request of a batch has one",
)


@seeds_need_vllm_0_32
def test_a_seed_gives_the_text_that_it_gives_without_trees(
    engine, pair, heldout_prompts, tree_config_of, shapes
):
    """Along the walk a request's generator makes one draw per token, as in plain decoding."""
    from vllm import SamplingParams

    limits = [
        {"temperature": 0.8},
        {"temperature": 1.0, "top_p": 0.9, "logprobs": 2},
        {"temperature": 1.3, "top_k": 20, "min_p": 0.0},
        {"temperature": 0.7, "repetition_penalty": 1.2, "min_tokens": 8},
        {"temperature": 0.0},
        {"temperature": 1.0, "bad_words": ["self"], "presence_penalty": 0.3},
    ]
    prompts = sorted(heldout_prompts, key=len)[:48:4]
    assert max(map(len, prompts)) < 512, "plain vLLM dies of a seed over prefill chunks on CPU"
    params = [
        SamplingParams(seed=100 + index, max_tokens=40, ignore_eos=True, **limits[index % 6])
        for index in range(len(prompts))
    ]
    requests = [{"prompt_token_ids": prompt} for prompt in prompts]
    texts = []
    fixed = tree_config_of(pair[1], shapes["default"])
    for speculative in (None, fixed, fixed | {"tree_policy": "adaptive"}):
        with engine(pair[0], speculative) as running:
            outputs = running.llm.generate(requests, params, use_tqdm=False)
            texts.append([output.outputs[0].token_ids for output in outputs])
    assert texts[1] == texts[2] == texts[0]


@seeds_need_vllm_0_32
def test_a_seeded_prompt_in_several_chunks_gives_the_text_of_a_prompt_in_one(
    engine, pair, heldout_prompts, tree_config_of, shapes
):
    """Regression: vLLM cannot rewind a CPU generator after a chunk, and ended the engine."""
    prompts = sorted(heldout_prompts, key=len)[-2:]
    assert min(map(len, prompts)) > 512
    speculative = tree_config_of(pair[1], shapes["default"])
    texts = []
    for rows in (512, 2048):
        with engine(pair[0], speculative, max_num_batched_tokens=rows) as running:
            texts.append(running.generate(prompts, temperature=1.0, seed=3, max_tokens=24))
    assert texts[0] == texts[1]
