# SPDX-License-Identifier: Apache-2.0
"""A command that is killed and started again ends as one that nobody killed."""

from pathlib import Path

import pytest
import torch

from vllm_eagle_pangu.training.training_run import load_state

from .commands import command, finish, finish_here, kill, started, states, wait_until, write_config
from .prepared import HEAD, prepare

ROWS, LENGTH, STEPS = 1000, 40, 40
SECTION = HEAD | {"held_out": 4, "max_tokens": STEPS * 128, "save_minutes": 0.0}


@pytest.fixture
def config(tmp_path, tiny_llama):
    """Of a run in a folder that is prepared, but for the hidden states."""

    def make(name: str) -> Path:
        generator = torch.Generator().manual_seed(0)
        rows = torch.randint(0, 256, (ROWS, LENGTH), generator=generator)
        lengths = torch.randint(LENGTH // 2, LENGTH + 1, (ROWS,), generator=generator)
        kept = [row[:length].tolist() for row, length in zip(rows, lengths, strict=True)]
        prepare(tmp_path / name / "prepared", kept, 4)
        general = {"run_dir": str(tmp_path / name), "target_model": str(tiny_llama), "threads": 1}
        return write_config(tmp_path / f"{name}.yaml", **general, seed=3, head=SECTION)

    return make


def test_killed_while_states_are_written_and_after_a_save_it_ends_with_the_same_head(
    config, tmp_path
):
    finish_here(config("whole"))
    cut = config("cut")
    with started(command(cut)) as process:
        wait_until(lambda: len(states(tmp_path / "cut" / "prepared")) > 100, process)
        kill(process)
    assert 100 < len(states(tmp_path / "cut" / "prepared")) < ROWS

    state = tmp_path / "cut" / "head" / "state.pt"
    with started(command(cut)) as process:
        wait_until(state.exists, process)
        kill(process)
    saved = load_state(state.parent)
    assert saved is not None and 0 < saved["position"][0] < STEPS

    finish(cut)
    folders = [tmp_path / name / "prepared" / "hidden_states" for name in ("whole", "cut")]
    files = [{path.name: path.read_bytes() for path in folder.iterdir()} for folder in folders]
    assert files[0] == files[1]
    heads = [load_state(tmp_path / name / "head") for name in ("whole", "cut")]
    whole, resumed = [head for head in heads if head is not None]
    assert whole["position"][0] == resumed["position"][0] == STEPS
    for name, weight in whole["model"].items():
        assert torch.equal(weight, resumed["model"][name]), name
    exported = [
        tmp_path / name / "head" / "draft" / "model.safetensors" for name in ("whole", "cut")
    ]
    assert exported[0].read_bytes() == exported[1].read_bytes()
