# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from vllm_eagle_pangu import fetch
from vllm_eagle_pangu.checked import checked, read_yaml
from vllm_eagle_pangu.cli import main
from vllm_eagle_pangu.training.config import TrainConfig

HEAD = "head: {taps: [1, 2], draft_vocab_size: 8, max_minutes: 1}\n"


def load_config(path: Path) -> TrainConfig:
    return checked(TrainConfig, read_yaml(path))


def written(folder: Path, text: str) -> Path:
    path = folder / "train.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("run_dir: r\nheadd: {}\n", 'headd={}: there is no such key; did you mean "head"'),
        (
            "run_dir: r\nhead: {taps: [1], draft_vocab_size: 8, tapz: 1}\n",
            'head.tapz=1: there is no .*"head.taps"',
        ),
        (
            "run_dir: r\nhead: {taps: [1], draft_vocab_size: 8, max_tokens: 1, parallel: true, "
            "rollout_steps: 1}\n",
            "rollout_steps=1: the first step has no masked rows; make it the depth",
        ),
        ("run_dir: r\nhead: {taps: [1]}\n", "head.draft_vocab_size=None: is missing; set"),
        ("seed: 1\n", 'run_dir=None: is missing; set "run_dir"'),
        ("run_dir: r\nanswers: {samples: many}\n", "answers.samples='many': must be a whole"),
        ("run_dir: r\nanswers: {samples: 0}\n", "answers.samples=0: must be at least 1; set"),
        ("run_dir: r\nanswers: {temperatures: 0.0}\n", r"write \[0.0\]"),
        ("run_dir: r\ntarget: {}\n", "max_tokens=None: max_minutes is unset, too; set one"),
        ("run_dir: r\ntexts: [a]\ncorpus: {packages: [a]}\n", "keep one of them"),
        (
            "run_dir: r\ntarget_model: t\ntarget: {max_tokens: 1}\n",
            "target_model='t': .*; keep target_model",
        ),
    ],
)
def test_bad_keys_and_values_are_named(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        load_config(written(tmp_path, text))


def test_sections_become_typed_and_absent_stages_stay_none(tmp_path):
    config = load_config(written(tmp_path, "run_dir: r\n" + HEAD))
    assert config.head is not None and config.head.taps == (1, 2)
    assert config.head.max_minutes == 1.0 and config.answers is None


def test_command_reports_a_bad_file_on_stderr_and_returns_2(tmp_path, capsys):
    assert main(["train", "--config", str(written(tmp_path, "run_dir: r\nfoo: 1\n"))]) == 2
    assert "foo=1: there is no such key" in capsys.readouterr().err


def test_a_model_that_cannot_be_fetched_is_said_on_stderr(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("EAGLE_PANGU_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(fetch, "READERS", ("a_library_that_nobody_has",))
    text = f"run_dir: {tmp_path / 'run'}\ntarget_model: smollm2\ntexts: [x]\nanswers: {{}}\n"
    assert main(["train", "--config", str(written(tmp_path, text))]) == 2
    assert "eagle-pangu train: reading smollm2's file takes a_library" in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(Path("configs/train").glob("*.yaml"), key=str))
def test_shipped_recipes_are_valid(name):
    load_config(name)
