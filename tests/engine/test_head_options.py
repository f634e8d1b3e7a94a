# SPDX-License-Identifier: Apache-2.0
"""Heads as trainers make them: a chain of ours drafts what vLLM's own `eagle3` drafts.

The two are compared token by token over every draft: where all tokens and all drafts are the same,
so is what was accepted. A request's last tokens are left out, for which we draft less. Prompts fit
one step: where a prompt is cut, vLLM 0.32 pairs the last row with a token of the prompt's end.
"""

from dataclasses import dataclass

import pytest
import vllm

from ..tiny_pair import (
    PAD,
    TRAINERS,
    write_speculators_head,
    write_tiny_head,
    write_trainers_head,
)

pytestmark = pytest.mark.engine

LENGTH = 5
# Behind the first two the windows below are full from the first draft on.
PROMPTS = [list(range(40, 100)), list(range(200, 130, -1)), list(b"short")]
SMALL = {"max_model_len": 256, "max_num_batched_tokens": 256, "max_num_seqs": 3}
QWEN = {"model_type": "qwen3", "architectures": ["Eagle3Qwen3ForCausalLM"]}
# vLLM 0.23's own eagle3 does not start on CPU.
EAGLE3_STARTS = not vllm.__version__.startswith("0.23")
ONE_GROUP = {"disable_hybrid_kv_cache_manager": True}


def sliding(window, *others):
    return {"layer_types": ["sliding_attention", *others], "sliding_window": window}


@dataclass(frozen=True)
class Case:
    """A head's config, whether in the speculators format, what it asks of the engine, and whether
    it drafts all levels at once, which vLLM has to be told."""

    options: dict
    speculators: bool = False
    engine: tuple = ()
    parallel: bool = False


CASES = {
    "residual-before-norm": Case({"norm_before_residual": False}),
    "norm-before-fc": Case({"norm_before_fc": True, "norm_output": True}),
    "fc-norm-two-layers": Case({"fc_norm": True, "num_hidden_layers": 2}),
    "qwen3": Case(QWEN),
    "window": Case(sliding(12)),
    "window-shorter-than-the-chain": Case(sliding(3)),
    "qwen3-window-as-speculators-writes-it": Case(
        QWEN
        | sliding(12, "sliding_attention")
        | {"num_hidden_layers": 2, "fc_norm": True, "norm_output": True},
        speculators=True,
    ),
    "all-levels-at-once": Case({"ptd_token_id": PAD}, parallel=True),
    "all-levels-at-once-two-layers": Case(
        {"ptd_token_id": PAD, "num_hidden_layers": 2, "norm_before_fc": True}, parallel=True
    ),
    "mixed-windows-in-one-cache-group": Case(
        sliding(12, "full_attention") | {"num_hidden_layers": 2, "norm_before_fc": True},
        speculators=True,
        engine=tuple(ONE_GROUP.items()),
    ),
}


@dataclass
class Decoded:
    tokens: list
    drafts: list
    accepted: list


@pytest.fixture(scope="module")
def decode(engine, tiny_pangu):
    """Decodes PROMPTS with a speculative_config: tokens, every draft, accepted by position."""

    def run(speculative, **options):
        with engine(tiny_pangu, speculative, **SMALL, **options) as running:
            drafts = _record_drafts(running.runner)
            tokens = running.generate(PROMPTS, max_tokens=48)
            metrics = {m.name: m for m in running.llm.get_metrics()}
        accepted = metrics.get("vllm:spec_decode_num_accepted_tokens_per_pos")
        return Decoded(tokens, drafts, [] if accepted is None else list(accepted.values))

    return run


@pytest.fixture(scope="module")
def plain(decode):
    return decode(None).tokens


@pytest.fixture
def check(decode, plain, tree_config_of):
    """Holds a head to what this file says, in engines with the `options` that the head asks for."""

    def hold(head, parallel=False, **options):
        own = {"method": "eagle3", "model": str(head), "num_speculative_tokens": LENGTH}
        own |= {"parallel_drafting": True} if parallel else {}
        ours = {**own, "method": "eagle_pangu"}
        chain = decode({**ours, "tree_policy": "chain"}, **options)
        trees = decode(tree_config_of(head, (3, 4, 12)), **options)
        assert chain.tokens == trees.tokens == plain
        if EAGLE3_STARTS:
            expected = decode(own, **options)
            assert expected.tokens == plain
            assert chain.drafts == expected.drafts
        assert chain.accepted[0] > len(chain.drafts) / 2, "the head must be right often enough"
        assert trees.accepted[0] >= chain.accepted[0] * 3 / 4

    return hold


@pytest.mark.parametrize("name", CASES)
def test_a_chain_drafts_and_accepts_what_vllms_eagle3_does(name, check, tmp_path):
    case = CASES[name]
    if "model_type" in case.options and vllm.__version__.startswith("0.23"):
        pytest.skip("vLLM 0.23 has no head with Qwen3 layers")
    write = write_speculators_head if case.speculators else write_tiny_head
    check(write(tmp_path / "head", **case.options), case.parallel, **dict(case.engine))


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_trainers_head_loads_by_its_folder_alone(trainer, check, tmp_path):
    check(write_trainers_head(tmp_path / "head", trainer))


def _record_drafts(runner) -> list[list[list[int]]]:
    """Fills with the drafted tokens of each step, request by request, as they are scheduled.

    Without those of requests that have room for no more than one whole draft.
    """
    drafts: list[list[list[int]]] = []
    execute = runner.execute_model

    def room(req_id):
        request = runner.requests[req_id]
        return request.sampling_params.max_tokens - len(request.output_token_ids)

    def recorded(scheduler_output, *args, **kwargs):
        scheduled = scheduler_output.scheduled_spec_decode_tokens.items()
        whole = [list(tokens) for req_id, tokens in scheduled if room(req_id) > LENGTH]
        if whole:
            drafts.append(whole)
        return execute(scheduler_output, *args, **kwargs)

    runner.execute_model = recorded
    return drafts
