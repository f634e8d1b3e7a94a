# SPDX-License-Identifier: Apache-2.0
"""Targets in a real vLLM engine against transformers: logits, greedy tokens and EAGLE-3 taps."""

from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from vllm_eagle_pangu.models.pangu_as_llama import load_target

pytestmark = pytest.mark.engine

PROMPTS = [[256, 72, 101, 108, 108, 111], [256, 7, 7, 7], [256, *range(40, 73)]]
NEW_TOKENS = 24
# Float32 on both sides, but vLLM's attention kernel sums in another order.
LOGPROB_TOLERANCE = 2e-3


@pytest.fixture(params=["pangu", "llama"])
def target(request: pytest.FixtureRequest) -> tuple[Path, LlamaForCausalLM]:
    folder = request.getfixturevalue(f"tiny_{request.param}")
    return folder, load_target(folder, torch.float32)


def test_vllm_equals_transformers_and_taps_are_layer_inputs(target, engine):
    folder, model = target
    expected = [greedy(model, prompt) for prompt in PROMPTS]
    with engine(folder) as llm:
        for prompt, tokens, completion in zip(
            PROMPTS, expected, complete(llm, PROMPTS), strict=True
        ):
            assert list(completion.token_ids) == tokens
            check_logprobs(model, prompt, completion)
        check_taps(llm, model, PROMPTS[2])


def test_openpangu_without_taps_returns_a_plain_tensor(tiny_pangu: Path, engine):
    """What vLLM's own class does: the plugin changes nothing where its method is not chosen."""
    kinds = []
    with engine(tiny_pangu) as llm:
        llm.apply_model(lambda m: m.register_forward_hook(lambda *a: kinds.append(type(a[-1]))))
        complete(llm, PROMPTS[:1], new_tokens=2)
    assert kinds == [torch.Tensor, torch.Tensor]


def test_compiled_openpangu_serves_vllms_own_eagle3(tiny_pangu: Path, tiny_head: Path, engine):
    """Taps pass through torch.compile; vLLM's chain method, unchanged, gets hidden states."""
    if pytest.importorskip("vllm").__version__.startswith("0.23"):
        pytest.skip("vLLM 0.23's own eagle3 does not start on CPU")
    model = load_target(tiny_pangu, torch.float32)
    options = {"method": "eagle3", "model": str(tiny_head), "num_speculative_tokens": 3}
    with engine(tiny_pangu, enforce_eager=False, speculative_config=options) as llm:
        completions = complete(llm, PROMPTS)
        taps = llm.apply_model(lambda m: m.model.aux_hidden_state_layers)
        compiled = llm.apply_model(lambda m: not m.model.do_not_compile)
    assert [list(c.token_ids) for c in completions] == [greedy(model, p) for p in PROMPTS]
    assert taps == [(1, 2, 3)]
    assert compiled == [True]


def complete(llm, prompts: list[list[int]], new_tokens: int = NEW_TOKENS) -> list:
    from vllm import SamplingParams

    logprobs = None if llm.llm_engine.vllm_config.speculative_config else -1
    params = SamplingParams(
        temperature=0.0, max_tokens=new_tokens, ignore_eos=True, logprobs=logprobs
    )
    requests = [{"prompt_token_ids": prompt} for prompt in prompts]
    return [out.outputs[0] for out in llm.generate(requests, params, use_tqdm=False)]


@torch.no_grad()
def greedy(model: LlamaForCausalLM, prompt: list[int]) -> list[int]:
    out = model.generate(
        torch.tensor([prompt]),
        do_sample=False,
        min_new_tokens=NEW_TOKENS,
        max_new_tokens=NEW_TOKENS,
        pad_token_id=0,
    )
    return out[0, len(prompt) :].tolist()


@torch.no_grad()
def check_logprobs(model: LlamaForCausalLM, prompt: list[int], completion) -> None:
    tokens = torch.tensor([prompt + list(completion.token_ids)])
    expected = model(tokens).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    got = torch.tensor(
        [[row[i].logprob for i in range(expected.shape[1])] for row in completion.logprobs]
    )
    torch.testing.assert_close(got, expected, rtol=0, atol=LOGPROB_TOLERANCE)


@torch.no_grad()
def check_taps(llm, model: LlamaForCausalLM, prompt: list[int]) -> None:
    """All four taps of a 3-layer model, for every token of a prompt read in one forward."""
    taps: list[torch.Tensor] = []

    def keep_taps(module, args, output):
        hidden_states, aux_hidden_states = output
        taps.extend(aux_hidden_states)
        return hidden_states

    llm.apply_model(lambda m: m.set_aux_hidden_state_layers((3, 0, 1, 2)))
    llm.apply_model(lambda m: m.register_forward_hook(keep_taps))
    complete(llm, [prompt], new_tokens=1)
    assert len(taps) == 4

    states = model(torch.tensor([prompt]), output_hidden_states=True).hidden_states
    # transformers returns the last state after the final norm.
    taps[3] = model.model.norm(taps[3])
    for tap, state in zip(taps, states, strict=True):
        torch.testing.assert_close(tap[: len(prompt)], state[0], rtol=1e-3, atol=2e-3)
