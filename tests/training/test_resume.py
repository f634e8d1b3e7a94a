# SPDX-License-Identifier: Apache-2.0
"""A run killed after a save and started again ends with the weights of an uninterrupted run."""

from pathlib import Path

import numpy as np
import pytest
import torch

from vllm_eagle_pangu.training import pretrain as pretrain_module
from vllm_eagle_pangu.training import train_head as train_head_module
from vllm_eagle_pangu.training.config import HeadConfig, TargetConfig
from vllm_eagle_pangu.training.draft_vocabulary import vocabulary_of
from vllm_eagle_pangu.training.ranks import Ranks
from vllm_eagle_pangu.training.run_state import load_state, save_state
from vllm_eagle_pangu.training.teacher import Teacher

from .prepared import prepare_with_states

VOCAB = 63
TARGET = TargetConfig(
    hidden_size=32,
    intermediate_size=48,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=8,
    sequence_length=8,
    long_sequence_length=16,
    long_from=0.5,
    tokens_per_step=64,
    micro_batch_tokens=32,
    max_tokens=64 * 8,
    save_minutes=0.0,
    log_every=2,
    compile=False,
)
HEAD = HeadConfig(
    taps=(1, 2),
    draft_vocab_size=31,
    intermediate_size=48,
    rollout_steps=3,
    length=16,
    held_out=3,
    max_tokens=4 * 16 * 8,
    save_minutes=0.0,
    log_every=2,
    compile=False,
)


class KilledError(Exception):
    pass


@pytest.fixture
def stream() -> np.ndarray:
    return np.random.default_rng(0).integers(0, VOCAB, 600).astype(np.uint16)


def killed_after(saves: int):
    """A `save_state` that saves, and raises when it has saved often enough."""
    done = 0

    def save(*args, **parts):
        nonlocal done
        save_state(*args, **parts)
        done += 1
        if done == saves:
            raise KilledError

    return save


def interrupted(monkeypatch, module, run, folder: Path) -> torch.nn.Module:
    with monkeypatch.context() as patch:
        patch.setattr(module, "save_state", killed_after(3))
        with pytest.raises(KilledError):
            run(folder)
    return run(folder)


def assert_same_weights(one: torch.nn.Module, other: torch.nn.Module) -> None:
    for (name, left), right in zip(
        one.state_dict().items(), other.state_dict().values(), strict=True
    ):
        assert torch.equal(left, right), name


def test_target_run_resumes_to_the_same_weights_and_log(tmp_path, monkeypatch, stream):
    def run(folder: Path) -> torch.nn.Module:
        return pretrain_module.pretrain(TARGET, stream, VOCAB, folder, 5, lambda model: None)

    whole = run(tmp_path / "whole")
    resumed = interrupted(monkeypatch, pretrain_module, run, tmp_path / "cut")
    assert_same_weights(whole, resumed)

    def logged(name: str) -> list[str]:
        rows = (tmp_path / name / "log.csv").read_text().splitlines()
        return [row.split(",")[0] for row in rows]

    assert logged("cut") == logged("whole") == ["step", "2", "4", "6", "8"]


def test_head_run_resumes_to_the_same_weights(tmp_path, monkeypatch, stream):
    torch.manual_seed(1)
    teacher = Teacher(pretrain_module.build_target(TARGET, VOCAB), HEAD.taps)
    rows = [stream[start : start + 6 + start % 8].tolist() for start in range(0, 400, 10)]
    prepared = prepare_with_states(tmp_path / "prepared", teacher, rows, prompt=2)
    vocabulary = vocabulary_of(prepared, VOCAB, HEAD.draft_vocab_size)

    def run(folder: Path) -> torch.nn.Module:
        return train_head_module.train_head(
            HEAD, teacher, vocabulary, prepared, folder, 5, lambda head: None, Ranks()
        )

    whole = run(tmp_path / "whole")
    resumed = interrupted(monkeypatch, train_head_module, run, tmp_path / "cut")
    assert_same_weights(whole, resumed)
    growth = (tmp_path / "cut" / "acceptance.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in growth] == ["step", *map(str, range(1, 9))]
    assert growth[0].endswith("held_out_0,held_out_1,held_out_2,tau_chain,tau_top")


def test_a_half_written_state_leaves_the_last_one_readable(tmp_path, monkeypatch):
    from vllm_eagle_pangu.training.run_state import Position

    save_state(tmp_path, Position(step=1), weights={"a": torch.ones(2)})

    def broken(value, file):
        file.write(b"half")
        raise KilledError

    monkeypatch.setattr(torch, "save", broken)
    with pytest.raises(KilledError):
        save_state(tmp_path, Position(step=2), weights={})
    monkeypatch.undo()
    loaded = load_state(tmp_path)
    assert loaded is not None and loaded[0].step == 1


def test_without_a_state_a_run_starts_from_nothing(tmp_path):
    assert load_state(tmp_path) is None
