# SPDX-License-Identifier: Apache-2.0
"""A run killed after a save and started again ends with the weights of an uninterrupted run."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from vllm_eagle_pangu.training import pretrain, train_head
from vllm_eagle_pangu.training.config import HeadConfig, TargetConfig
from vllm_eagle_pangu.training.hidden_states import Teacher
from vllm_eagle_pangu.training.run_folder import Ranks, whole_file
from vllm_eagle_pangu.training.training_run import load_state

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


@pytest.fixture
def interrupted(monkeypatch):
    """What `run(folder)` gives that was killed while `module.name` exported for the fourth time."""

    def interrupted(run, folder: Path, module, name: str) -> torch.nn.Module:
        exports, export = 0, getattr(module, name)

        def killed(model: torch.nn.Module, folder: Path) -> None:
            nonlocal exports
            exports += 1
            if exports == 4:
                raise KilledError
            export(model, folder)

        with monkeypatch.context() as patch, pytest.raises(KilledError):
            patch.setattr(module, name, killed)
            run(folder)
        return run(folder)

    return interrupted


def assert_same_weights(one: torch.nn.Module, other: torch.nn.Module) -> None:
    for (name, left), right in zip(
        one.state_dict().items(), other.state_dict().values(), strict=True
    ):
        assert torch.equal(left, right), name


def test_target_run_resumes_to_the_same_weights_and_log(tmp_path, stream, tiny_llama, interrupted):
    weights = shutil.ignore_patterns("config.json", "*.safetensors")
    tokenizer = shutil.copytree(tiny_llama, tmp_path / "tokenizer", ignore=weights)

    def run(folder: Path) -> torch.nn.Module:
        return pretrain.pretrain(TARGET, stream, tokenizer, folder, 5)

    whole = run(tmp_path / "whole")
    resumed = interrupted(run, tmp_path / "cut", pretrain, "save_llama_as_pangu")
    assert_same_weights(whole, resumed)

    def logged(name: str) -> list[str]:
        rows = (tmp_path / name / "log.csv").read_text().splitlines()
        return [row.split(",")[0] for row in rows]

    assert logged("cut") == logged("whole") == ["step", "2", "4", "6", "8"]


def test_head_run_resumes_to_the_same_weights(tmp_path, stream, interrupted):
    torch.manual_seed(1)
    teacher = Teacher(pretrain.build_target(TARGET, VOCAB), HEAD.taps)
    rows = [stream[start : start + 6 + start % 8].tolist() for start in range(0, 400, 10)]
    prepared = prepare_with_states(tmp_path / "prepared", teacher, rows, prompt=2)

    def run(folder: Path) -> torch.nn.Module:
        return train_head.train_head(HEAD, teacher, prepared, folder, 5, Ranks())

    whole = run(tmp_path / "whole")
    resumed = interrupted(run, tmp_path / "cut", train_head, "save_head")
    assert_same_weights(whole, resumed)
    growth = (tmp_path / "cut" / "acceptance.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in growth] == ["step", *map(str, range(1, 9))]
    assert growth[0].endswith("held_out_0,held_out_1,held_out_2,tau_chain,tau_top")


def test_a_half_written_file_leaves_the_last_one_readable(tmp_path):
    path = tmp_path / "state.pt"
    path.write_text("whole")
    with pytest.raises(KilledError), whole_file(path) as partial:
        partial.write_text("half")
        raise KilledError
    assert path.read_text() == "whole" and list(tmp_path.iterdir()) == [path]


def test_a_state_of_an_earlier_version_is_refused(tmp_path):
    torch.save({"position": {"step": 1}, "head": {}}, tmp_path / "state.pt")
    with pytest.raises(ValueError, match=r"state.pt': is of an earlier version; remove it"):
        load_state(tmp_path)


def test_without_a_state_a_run_starts_from_nothing(tmp_path):
    assert load_state(tmp_path) is None
