# SPDX-License-Identifier: Apache-2.0
"""Greedy decoding with trees gives the target's own tokens; benchmarks/lossless.py has more."""

import pytest
from vllm.v1.sample.sampler import Sampler

from vllm_eagle_pangu.engine import sampling
from vllm_eagle_pangu.kernels.tree_attention.cases import make_inputs, verify_case

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


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        *((name, "dynamic") for name in ("chain", "narrow", "default", "wide")),
        ("default", "adaptive"),
    ],
)
def test_tokens_equal_plain_decoding_at_batch_1_and_16(
    name, policy, engine, pair, prompts, plain, tree_config_of, shapes
):
    with engine(pair[0], tree_config_of(pair[1], shapes[name], tree_policy=policy)) as trees:
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
        # Unchecked, the block table's -1 would be the last page.
        outside = make_inputs(verify_case("outside", (20,), (3,)))
        outside["rows"].block_table.fill_(-1)
        for layer in trees.runner._attention_layers().values():
            with pytest.raises(AssertionError):
                layer.impl.attend(**outside)


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


def test_min_tokens_leaves_logprobs_and_ranks_as_plain_decoding_gives_them(
    engine, pair, prompts, plain, tree_config_of, shapes
):
    """Regression: stop tokens were forbidden before logprobs were taken."""
    from vllm import SamplingParams

    # The likeliest tokens may not be drawn; their logprobs must be there all the same.
    stops = [sorted(set(row[:6])) for row in plain[4:7]]
    params = [
        SamplingParams(
            temperature=0.0, max_tokens=16, min_tokens=12, stop_token_ids=stop, logprobs=4
        )
        for stop in stops
    ]
    requests = [{"prompt_token_ids": prompt} for prompt in prompts[4:7]]
    results = []
    for speculative in (None, tree_config_of(pair[1], shapes["default"])):
        with engine(pair[0], speculative) as running:
            outputs = running.llm.generate(requests, params, use_tqdm=False)
            results.append([output.outputs[0] for output in outputs])
    assert_same_outputs(*results)
    for stop, output in zip(stops, results[0], strict=True):
        assert output.logprobs[0].keys() & set(stop), "no forbidden token was likely"


def test_a_structured_request_that_may_only_stop_stops_before_its_min_tokens(
    engine, pair, prompts, tree_config_of, shapes
):
    """Regression: beside trees min_tokens left it no token at all, and it emitted token 0."""
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    choice = StructuredOutputsParams(choice=["a", "b"])
    params = [
        SamplingParams(temperature=0.0, max_tokens=8, min_tokens=6, structured_outputs=choice),
        SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True),
    ]
    requests = [{"prompt_token_ids": prompt} for prompt in prompts[5:7]]
    results = []
    for speculative in (None, tree_config_of(pair[1], shapes["default"])):
        with engine(pair[0], speculative) as running:
            outputs = running.llm.generate(requests, params, use_tqdm=False)
            results.append([output.outputs[0] for output in outputs])
    assert_same_outputs(*results)


@pytest.mark.parametrize("walk_from", [0, 2**40])
def test_greedy_draws_along_the_walk_and_at_every_row_are_the_same(
    walk_from, engine, pair, prompts, plain, tree_config_of, shapes, monkeypatch
):
    """Which of the two is taken depends on rows x vocabulary only."""
    monkeypatch.setattr(sampling, "WALK_FROM", walk_from)
    drawn = []
    with engine(pair[0], tree_config_of(pair[1], shapes["wide"])) as trees:
        sampler = trees.runner.sampler.forward

        def forward(logits, **arguments):
            drawn.append(logits.shape[0])
            return sampler(logits=logits, **arguments)

        monkeypatch.setattr(trees.runner.sampler, "forward", forward)
        assert trees.generate(prompts[:4], max_tokens=24) == [row[:24] for row in plain[:4]]
    assert (max(drawn) <= 4) == (walk_from == 0)


def test_draws_in_small_calls_are_those_of_one_call(
    engine, pair, prompts, plain, tree_config_of, shapes, monkeypatch
):
    """The rows of a call are bounded by what vLLM's profile of its sampler has seen."""
    monkeypatch.setattr("vllm_eagle_pangu.engine.runner_start.HOLD", 0)
    calls = []
    with engine(pair[0], tree_config_of(pair[1], shapes["wide"]), max_num_seqs=5) as trees:
        sampler = trees.runner.sampler.forward

        def forward(logits, **arguments):
            calls.append(logits.shape[0])
            return sampler(logits=logits, **arguments)

        monkeypatch.setattr(trees.runner.sampler, "forward", forward)
        assert trees.generate(prompts[:4], max_tokens=24) == [row[:24] for row in plain[:4]]
    assert max(calls) == 5


def test_the_profile_of_the_sampler_sees_the_rows_of_a_steps_largest_call(
    engine, pair, tree_config_of, shapes, monkeypatch
):
    """Regression: a step sampled all rows of all trees at once, which no profile had seen."""
    profiled = []
    forward = Sampler.forward

    def watched(self, logits, *arguments, **keywords):
        profiled.append(logits.shape[0])
        return forward(self, logits, *arguments, **keywords)

    monkeypatch.setattr(Sampler, "forward", watched)
    monkeypatch.setattr(sampling, "WALK_FROM", 2**40)
    with engine(pair[0], tree_config_of(pair[1], shapes["wide"]), max_num_seqs=2) as trees:
        # On CPU vLLM profiles compiled models only.
        trees.runner.profile_run()
        seen, profiled[:] = max(profiled), []
        trees.generate([[5, 6, 7], [8, 9]], max_tokens=8)
    assert 2 < max(profiled) <= seen


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
