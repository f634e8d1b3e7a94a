# SPDX-License-Identifier: Apache-2.0
"""The engine of all measurements, over a stand-in for vLLM's: what it counts, times and hooks."""

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("vllm")

from vllm.v1.metrics.stats import SchedulerStats
from vllm.v1.spec_decode.metrics import SpecDecodingStats

from vllm_eagle_pangu.measure import engine as module
from vllm_eagle_pangu.measure.engine import Engine, timed


class TwoATime:
    """vLLM's engine as far as it is used: each step gives each request two tokens, one drafted."""

    def __init__(self, logger):
        self.logger, self.requests, self.done = logger, {}, {}
        self.model, head = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
        drafter, sampler = SimpleNamespace(model=head), torch.nn.Identity()
        self.runner = SimpleNamespace(speculative_config=True, drafter=drafter, sampler=sampler)
        self.engine_core = SimpleNamespace(shutdown=lambda: None)

    def collective_rpc(self, function):
        return [function(SimpleNamespace(model_runner=self.runner))]

    def apply_model(self, function):
        return [function(self.model)]

    def add_request(self, name, prompt, sampling):
        assert prompt["prompt_token_ids"] and name not in self.requests
        self.requests[name], self.done[name] = sampling, []

    def abort_request(self, names):
        for name in names:
            del self.requests[name]

    def has_unfinished_requests(self):
        return bool(self.requests)

    def step(self):
        self.runner.sampler(self.model(torch.ones(2)))
        self.runner.drafter.model(torch.ones(2))
        stats = SpecDecodingStats.new(3)
        outputs = []
        for name, sampling in list(self.requests.items()):
            stats.observe_draft(num_draft_tokens=3, num_accepted_tokens=1)
            self.done[name] += [1, 2]
            finished = len(self.done[name]) >= sampling.max_tokens
            if finished:
                del self.requests[name]
            if finished or sampling.output_kind.name != "FINAL_ONLY":
                tokens = self.done[name][: sampling.max_tokens]
                if sampling.output_kind.name == "DELTA":
                    tokens = tokens[len(self.done[name]) - 2 :]
                output = SimpleNamespace(token_ids=tokens)
                of_request = {"request_id": name, "outputs": [output], "finished": finished}
                outputs.append(SimpleNamespace(**of_request))
        self.logger.record(SchedulerStats(spec_decoding_stats=stats), None, engine_idx=0)
        # The last that was asked for comes first, as vLLM may have it.
        return outputs[::-1]


@pytest.fixture
def engine(monkeypatch):
    from vllm.v1.engine import llm_engine

    def start(arguments, usage, stat_loggers):
        return TwoATime(stat_loggers[0](None, 0))

    monkeypatch.setattr(llm_engine.LLMEngine, "from_engine_args", start)
    monkeypatch.setattr("vllm.engine.arg_utils.EngineArgs", SimpleNamespace)
    with Engine("model", None) as opened:
        yield opened


def test_completions_come_in_the_order_of_their_prompts_and_each_engine_counts_its_own(engine):
    assert engine.generate([[1], [2]], max_tokens=3) == [[1, 2, 1]] * 2
    assert engine.counts == {"drafts": 4, "drafted": 12, "accepted": 4, "full_drafts": 0}
    assert engine.runner is engine.vllm.runner


def test_one_request_is_timed_by_its_steps_and_counted_apart(engine, monkeypatch):
    monkeypatch.setattr(module, "logits_of", lambda model: [])
    engine.generate([[1]], max_tokens=8)
    figures = engine.measure("E7 x", [1, 2, 3], forward_times=True, max_tokens=6)
    assert figures["request"] == "E7 x" and figures["output_ids"] == [1, 2] * 3
    assert (figures["prompt_tokens"], figures["output_tokens"]) == (3, 6)
    assert (figures["drafts"], figures["accepted"], figures["tau"]) == (3, 3, 2.0)
    assert len(figures["steps_ms"]) == 2, "the first step is the prefill"
    whole = figures["ttft_ms"] + sum(figures["steps_ms"])
    assert figures["seconds"] == pytest.approx(whole / 1e3, rel=0.01, abs=1e-5)
    parts = [figures[name] for name in ("forward_ms", "sampler_ms", "draft_ms")]
    assert min(parts) > 0 and sum(parts) < whole
    assert "forward_ms" not in engine.measure("E1 x", [1], max_tokens=4)


def test_clients_ask_again_once_they_are_answered_and_are_let_go_in_the_end(engine):
    clients, asked = 2, iter([([1], {"max_tokens": length}) for length in (3, 6, 4, 9, 9)])
    served = engine.serve(asked, lambda: clients)
    steps = [next(served) for _ in range(3)]
    # Of 3 tokens and 6; when the first is answered, the one of 4 comes.
    assert [step.tokens for step in steps] == [4, 3, 4]
    assert [len(step.first) for step in steps] == [2, 0, 1]
    assert all(step.seconds > 0 for step in steps)
    clients = 1
    assert next(served).tokens == 2 and not engine.vllm.requests, "who is answered stays away"
    clients = 2
    assert next(served).tokens == 4 and len(engine.vllm.requests) == 2
    served.close()
    assert not engine.vllm.requests


def test_of_a_runner_that_tells_its_stages_only_the_targets_forward_is_timed(engine, monkeypatch):
    monkeypatch.setattr(module, "logits_of", lambda model: [])
    assert set(engine.modules()) == {"forward", "sampler", "draft"}
    engine.runner.stages = "there"
    assert set(engine.modules()) == {"forward"}


def test_a_modules_time_is_added_while_it_is_watched_and_no_hook_is_left():
    inner, spent = torch.nn.Linear(2, 2), {}
    outer = torch.nn.Sequential(inner)
    with timed(spent, {"whole": [outer], "part": [inner]}):
        outer(torch.ones(2))
    outer(torch.ones(2))
    assert spent["whole"] > spent["part"] > 0
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in (outer, inner))
