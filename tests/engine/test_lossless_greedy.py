# SPDX-License-Identifier: Apache-2.0
"""Greedy decoding with trees gives the target's own tokens; benchmarks/lossless.py has more."""

import pytest

pytestmark = pytest.mark.engine

TOKENS = 48


@pytest.fixture(scope="module")
def prompts(heldout_prompts):
    """Sixteen prompts from the shortest to the longest."""
    ordered = sorted(heldout_prompts, key=len)
    step = max(1, len(ordered) // 15)
    return [*ordered[::step][:15], ordered[-1]]


@pytest.fixture(scope="module")
def plain(engine, pair, prompts):
    """What the target decodes alone."""
    with engine(pair[0]) as plain_engine:
        return plain_engine.generate(prompts, max_tokens=TOKENS)


@pytest.mark.parametrize("name", ["chain", "narrow", "default", "wide"])
def test_tokens_equal_plain_decoding_at_batch_1_and_16(
    name, engine, pair, prompts, plain, tree_config_of, shapes
):
    with engine(pair[0], tree_config_of(pair[1], shapes[name])) as trees:
        together = trees.generate(prompts, max_tokens=TOKENS)
        alone = [trees.generate([prompt], max_tokens=TOKENS)[0] for prompt in prompts[:6]]
    assert together == plain
    assert alone == plain[:6]


def test_reference_mode_gives_the_same_tokens_with_every_check_on(
    engine, pair, prompts, plain, tree_config_of, shapes
):
    speculative = tree_config_of(pair[1], shapes["default"], verify_mode="reference")
    with engine(pair[0], speculative) as trees:
        assert trees.generate(prompts[:5], max_tokens=24) == [row[:24] for row in plain[:5]]


def test_requests_near_max_model_len_are_decoded_to_the_end(
    engine, pair, prompts, tree_config_of, shapes
):
    """The scheduler cuts trees there, and the drafter stops for single requests, not for all."""
    short = [prompt[-40:] for prompt in prompts[-4:]]
    with engine(pair[0], max_model_len=96) as plain_engine:
        expected = plain_engine.generate(short, max_tokens=90)
    with engine(pair[0], tree_config_of(pair[1], shapes["default"]), max_model_len=96) as trees:
        assert trees.generate(short, max_tokens=90) == expected


def test_penalties_bad_words_min_tokens_and_logprobs_follow_each_path(
    engine, pair, prompts, tree_config_of, shapes
):
    from vllm import SamplingParams

    params = [
        SamplingParams(temperature=0.0, max_tokens=32, repetition_penalty=1.3),
        SamplingParams(temperature=0.0, max_tokens=32, frequency_penalty=0.7, logprobs=3),
        SamplingParams(temperature=0.0, max_tokens=32, bad_words=["self", " return"]),
        SamplingParams(temperature=0.0, max_tokens=32, min_tokens=20),
        SamplingParams(temperature=0.0, max_tokens=32, logprobs=2),
        SamplingParams(temperature=0.0, max_tokens=32, allowed_token_ids=list(range(50, 1500))),
    ]
    requests = [{"prompt_token_ids": prompt} for prompt in prompts[4 : 4 + len(params)]]
    results = []
    for speculative in (None, tree_config_of(pair[1], shapes["default"])):
        with engine(pair[0], speculative) as running:
            outputs = running.llm.generate(requests, params, use_tqdm=False)
            results.append([output.outputs[0] for output in outputs])
    assert_same_outputs(*results)


def assert_same_outputs(plain_outputs, tree_outputs):
    for plain_output, tree_output in zip(plain_outputs, tree_outputs, strict=True):
        assert tree_output.token_ids == plain_output.token_ids
        if plain_output.logprobs is not None:
            for expected, got in zip(plain_output.logprobs, tree_output.logprobs, strict=True):
                assert expected.keys() == got.keys()
                for token, logprob in expected.items():
                    assert got[token].logprob == pytest.approx(logprob.logprob, abs=1e-3)
                    assert got[token].rank == logprob.rank


def test_logprobs_of_tokens_that_a_request_names_follow_its_path(
    engine, pair, prompts, tree_config_of, shapes
):
    """Regression: the levels of a walk differ in how many such tokens their requests name."""
    from vllm import SamplingParams

    greedy = {"temperature": 0.0, "ignore_eos": True}
    params = [
        SamplingParams(**greedy, max_tokens=24, logprob_token_ids=[5, 60, 700]),
        SamplingParams(**greedy, max_tokens=32, repetition_penalty=1.2, logprob_token_ids=[7]),
        SamplingParams(**greedy, max_tokens=40),
    ]
    requests = [{"prompt_token_ids": prompt} for prompt in prompts[4:7]]
    results = []
    for speculative in (None, tree_config_of(pair[1], shapes["default"])):
        with engine(pair[0], speculative) as running:
            outputs = running.llm.generate(requests, params, use_tqdm=False)
            results.append([output.outputs[0] for output in outputs])
    assert results[0][0].logprobs is not None
    assert_same_outputs(*results)


def test_structured_output_requests_go_without_drafts_and_stay_valid(
    engine, pair, prompts, tree_config_of, shapes
):
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    choice = StructuredOutputsParams(choice=["alpha", "beta gamma"])
    params = [
        SamplingParams(temperature=0.0, max_tokens=16, structured_outputs=choice),
        SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True),
    ]
    requests = [{"prompt_token_ids": prompt} for prompt in prompts[5:7]]
    with engine(pair[0], tree_config_of(pair[1], shapes["default"])) as trees:
        outputs = [o.outputs[0] for o in trees.llm.generate(requests, params, use_tqdm=False)]
    assert outputs[0].text in ("alpha", "beta gamma")
    with engine(pair[0]) as plain_engine:
        (expected,) = plain_engine.generate([prompts[6]], max_tokens=TOKENS)
    assert list(outputs[1].token_ids) == expected
