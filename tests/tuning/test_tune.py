# SPDX-License-Identifier: Apache-2.0
"""The tuner on real engines: its hooks, its τ, and a whole run."""

import json
from dataclasses import replace

import pytest

pytest.importorskip("vllm")

from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.measure.method import PLAIN, chain, of_shape
from vllm_eagle_pangu.models.registration import register_models
from vllm_eagle_pangu.tuning import grid, prediction, probing, race
from vllm_eagle_pangu.tuning.command import measure
from vllm_eagle_pangu.tuning.engines import Engines
from vllm_eagle_pangu.tuning.probing import Probes, probe
from vllm_eagle_pangu.tuning.recording import record, step_lengths
from vllm_eagle_pangu.tuning.settings import Settings

pytestmark = pytest.mark.engine

TEXTS = ["the first", "a second, longer one", "3.", "and the last of four"]
PROMPTS = [list(text.encode()) for text in TEXTS]
TOKENS = 32


@pytest.fixture(scope="module")
def engines(tiny_pangu, tiny_head):
    """Of the tiny pair, in float32 as its checkpoint is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        register_models()
        settings = Settings(
            str(tiny_pangu),
            str(tiny_head),
            "",
            tokens=TOKENS,
            engine_args={"dtype": "float32", "kv_cache_memory_bytes": 2**25},
        )
        yield Engines(settings, max_model_len=128)


def test_simulated_steps_are_those_of_real_engines_and_recording_leaves_no_trace(engines):
    widths, shapes = (1, 3, 8), (TreeShape(1, 4, 4), TreeShape(3, 3, 7))
    widest = of_shape(grid.largest(0)).speculative_config(engines.settings.head)
    greedy = {"temperature": 0.0, "max_tokens": TOKENS}
    with engines.open(widest, 4) as engine:
        recording = record(engine, PROMPTS, widths, 5, TOKENS, 0.0)
        assert engine.counts["drafts"] == 0, "nothing grown is verified while recording"
        texts = engine.generate(PROMPTS, **greedy)
        assert engine.counts["drafts"] > 0, "afterwards the engine drafts as before"
    # It looked ahead as far as a step behind the last token would.
    cut = {request: text[:TOKENS] for request, text in recording.texts.items()}
    assert sorted(cut.values()) == sorted(texts)
    for shape in shapes:
        with engines.open(of_shape(shape).speculative_config(engines.settings.head), 4) as engine:
            assert engine.generate(PROMPTS, **greedy) == texts
        steps = emitted = 0
        for request, text in cut.items():
            needed = recording.needed[shape.width][request][:, shape.depth - 1, : shape.depth]
            accepted = (needed <= shape.nodes).sum(axis=1).tolist()
            # The last token is decoded without a tree.
            lengths = step_lengths(accepted, len(text), len(text) - 3)
            steps, emitted = steps + len(lengths), emitted + sum(lengths)
        assert steps == engine.counts["drafts"], shape
        # vLLM also counts what a request's last tree holds beyond its last token.
        beyond = engine.counts["accepted"] + engine.counts["drafts"] - emitted
        assert 0 <= beyond <= len(texts) * (shape.depth - 1), shape
        assert shape.width > 1 or beyond == 0


class Remembered:
    """An engine whose completions are kept."""

    def __init__(self, engine):
        self.engine, self.watched, self.seen = engine, engine.watched, []

    def generate(self, *prompts, **params):
        self.seen.append(self.engine.generate(*prompts, **params))
        return self.seen[-1]


def test_probing_changes_shapes_step_by_step_and_no_token(engines, monkeypatch):
    monkeypatch.setattr(probing, "SECONDS", 1.0)
    budgets = (1, 2, 4, 8)
    greedy = {"temperature": 0.0, "max_tokens": TOKENS}
    widest = of_shape(grid.largest(max(budgets))).speculative_config(engines.settings.head)
    with engines.open(widest, 2) as engine:
        before = engine.generate(PROMPTS, **greedy)
        empty = Probes.empty(2, (1, 3, 8), (2, 5), budgets)
        remembered = Remembered(engine)
        probes = probe(remembered, PROMPTS, empty, TOKENS, 0.0)
        assert engine.generate(PROMPTS, **greedy) == before
    assert remembered.seen[1] == before, "the first full call while shapes change"
    assert all(map(len, probes.draft_ms.values())) and all(map(len, probes.verify_ms.values()))
    assert min(probes.verify().values()) > 0


def test_a_race_runs_every_method_and_leaves_out_a_chain_that_vllm_does_not_start(
    engines, monkeypatch
):
    said: list[str] = []
    real = Engines.open

    def open_or_not(self, speculative, batch_size):
        if speculative is not None and speculative["num_speculative_tokens"] == 7:
            raise RuntimeError("not this one")
        return real(self, speculative, batch_size)

    monkeypatch.setattr(Engines, "open", open_or_not)
    methods = [PLAIN, chain(3), chain(7), of_shape(TreeShape(2, 3, 6))]
    # As long as it takes: on a busy machine the budget would end after a piece.
    monkeypatch.setattr(race, "SECONDS", 3600.0)
    monkeypatch.setattr(race, "ROUNDS", 2)
    times = race.race(engines, methods, PROMPTS, 1, said.append)
    assert list(times) == [PLAIN, chain(3), of_shape(TreeShape(2, 3, 6))]
    assert said == ["eagle3 K=7: left out, vLLM does not start it: not this one"]
    assert {len(figures.seconds) for figures in times.values()} == {len(PROMPTS)}
    assert times[PLAIN].tau is None and times[chain(3)].tau > 1
    tokens = [figures.tokens for figures in times.values()]
    assert tokens[0] == tokens[1] == tokens[2] == [[TOKENS] * 2] * len(PROMPTS)


def test_an_argument_that_vllm_does_not_know_is_refused(engines):
    settings = Settings("T", "H", "p", engine_args={"max_modle_len": 8})
    with (
        pytest.raises(ValueError, match="max_modle_len=8: vLLM has no such argument"),
        Engines(settings, 128).open(None, 1),
    ):
        pass


def test_a_whole_run_ends_with_a_configuration_that_the_engine_takes(
    engines, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(grid, "WIDTHS", (1, 3))
    monkeypatch.setattr(prediction, "TREES", 1)
    monkeypatch.setattr(prediction, "CHAINS", 1)
    monkeypatch.setattr(probing, "SAMPLES", 3)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in TEXTS))
    out = tmp_path / "tuned.json"
    settings = replace(engines.settings, prompts=str(prompts), batch_sizes=(2,), out=str(out))
    measure(settings)
    assert str(out) in capsys.readouterr().out
    found = json.loads(out.read_text())
    with engines.open(found["speculative_config"], 2) as engine:
        outputs = engine.generate(PROMPTS, temperature=0.0, max_tokens=8)
    assert [len(output) for output in outputs] == [8] * 4
    assert len(found["measured"]) == 3 and found["measured"][0]["expected_tau"] >= 1
    assert found["recorded_tokens"] == 4 * (TOKENS + grid.DEPTH) and out.with_suffix(".md").exists()


def test_what_the_user_can_mend_ends_the_measuring_process_with_2(engines, tmp_path, capsys):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "some words"}\n')
    args = {**engines.settings.engine_args, "max_model_len": 40}
    with pytest.raises(SystemExit, match="2"):
        measure(replace(engines.settings, prompts=str(prompts), engine_args=args))
    assert "max_model_len=40: no prompt leaves room" in capsys.readouterr().err
