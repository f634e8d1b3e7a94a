# SPDX-License-Identifier: Apache-2.0
"""A prepared folder that does not fit is refused by key, value and mend, and nothing of it is lost.

By the real command, stage head alone, on a folder that has everything.
"""

import json
import resource
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from datasets import load_from_disk
from safetensors.torch import load_file, save_file

from vllm_eagle_pangu.cli import main
from vllm_eagle_pangu.models.pangu_as_llama import load_target
from vllm_eagle_pangu.training import answers, hidden_states
from vllm_eagle_pangu.training.config import AnswersConfig
from vllm_eagle_pangu.training.hidden_states import Teacher, load_rows, states_file
from vllm_eagle_pangu.training.run_folder import Ranks

from .prepared import HEAD, prepare, prepare_with_states

ROWS = [[(37 * row + 11 * i) % 256 for i in range(30 + row)] for row in range(8)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory, tiny_llama) -> Path:
    """A folder that fits: eight rows, and the tiny Llama's states at taps 1 and 2."""
    teacher = Teacher(load_target(tiny_llama), (1, 2))
    return prepare_with_states(tmp_path_factory.mktemp("whole") / "prepared", teacher, ROWS, 4)


@pytest.fixture
def prepared(whole, tmp_path) -> Path:
    """Such a folder of one's own."""
    return shutil.copytree(whole, tmp_path / "run" / "prepared")


@pytest.fixture
def train(tmp_path, tiny_llama, capsys) -> Callable[..., str]:
    """Run the command on `tmp_path/run`; what it says where it refuses, "" where it ends well."""

    def train(**head) -> str:
        general = {"run_dir": str(tmp_path / "run"), "target_model": str(tiny_llama), "threads": 1}
        (tmp_path / "head.yaml").write_text(json.dumps({**general, "head": HEAD | head}))
        code = main(["train", "--config", str(tmp_path / "head.yaml")])
        said = capsys.readouterr().err
        assert code in (0, 2)
        return said if code else ""

    return train


@pytest.fixture
def refuse(train, tmp_path) -> Callable[..., None]:
    """Holds the command to refuse with these words, and to leave every file as it is."""

    def refuse(*words: str, **head) -> None:
        before = contents(tmp_path / "run")
        said = train(**head)
        for word in words:
            assert word in said
        after = contents(tmp_path / "run")
        assert {path: after.get(path) for path in before} == before
        assert not [path for path in after if path.suffix == ".partial"]

    return refuse


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """A limit on a file's size stands for the full disk: the write itself fails, as there."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_dataset_without_loss_mask(refuse, tmp_path, whole):
    prepared = tmp_path / "run" / "prepared"
    load_from_disk(whole).remove_columns("loss_mask").save_to_disk(prepared)
    refuse(f"run_dir={str(prepared)!r}: its dataset has no 'loss_mask'; prepare it again")


@pytest.mark.parametrize("wrong", ["without hidden_states", "other tokens"])
def test_a_states_file_that_is_not_its_rows(wrong, refuse, train, prepared):
    path = states_file(prepared, 3)
    tensors = load_file(path)
    if wrong == "other tokens":
        tensors["token_ids"][5] += 1
    else:
        del tensors["hidden_states"]
    save_file(tensors, path)
    refuse(
        f"run_dir={str(path)!r}: has no states of its row in the dataset",
        "remove it, and run the same command",
    )
    path.unlink()
    assert train() == ""


def test_a_states_file_that_is_cut_off_is_made_anew(train, prepared):
    before = contents(prepared)
    stamps = {path: path.stat().st_mtime_ns for path in before}
    cut, gone = states_file(prepared, 2), states_file(prepared, 5)
    cut.write_bytes(before[cut][: len(before[cut]) // 2])
    gone.unlink()
    assert train() == ""
    after = contents(prepared)
    assert {path: after[path] for path in before} == before
    again = {path for path in before if path.stat().st_mtime_ns != stamps[path]}
    assert again == {cut, gone}


def test_states_at_other_taps(refuse, train, prepared):
    folder = prepared / "hidden_states"
    # As many, so that no shape tells.
    refuse(
        f"run_dir={str(folder)!r}: was prepared with another head.taps: [1, 2]",
        "remove this folder",
        taps=[1, 3],
    )
    (folder / "inputs.json").unlink()  # as another tool leaves the folder
    refuse("head.taps=[1]: hidden_states in", "not [37, 2, 64]; name the taps", taps=[1])
    assert not (folder / "inputs.json").exists(), "nothing is claimed that was refused"
    assert train() == ""


@pytest.mark.usefixtures("prepared")
def test_another_target_of_the_same_shapes(train, tmp_path, tiny_llama, capsys):
    assert train() == ""
    other = shutil.copytree(tiny_llama, tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-3}))
    text = (tmp_path / "head.yaml").read_text().replace(str(tiny_llama), str(other))
    (tmp_path / "other.yaml").write_text(text)
    before = contents(tmp_path / "run")
    assert main(["train", "--config", str(tmp_path / "other.yaml")]) == 2
    assert "was prepared with another target: " in capsys.readouterr().err
    assert contents(tmp_path / "run") == before


def test_tokens_of_another_tokenizer(refuse, tmp_path):
    rows = [*ROWS, [300] * 8]
    prepared = prepare(tmp_path / "run" / "prepared", rows, 4)
    words = (
        f"run_dir={str(prepared)!r}: token 300 is of another tokenizer: the target has 259",
        "name as target_model what the rows were prepared for",
    )
    refuse(*words)
    assert not (prepared / "hidden_states").exists()
    (prepared / "hidden_states").mkdir()
    for i, row in enumerate(rows):
        states = torch.zeros(len(row), 3, 64, dtype=torch.bfloat16)
        save_file(
            {"token_ids": torch.tensor(row), "hidden_states": states}, states_file(prepared, i)
        )
    refuse(*words)


def test_a_disk_that_is_too_small_is_known_before(refuse, tmp_path, monkeypatch):
    prepared = prepare(tmp_path / "run" / "prepared", ROWS, 4)
    usage = shutil.disk_usage(tmp_path)
    needed = sum(map(len, ROWS)) * 3 * 64 * 2
    monkeypatch.setattr(
        hidden_states.shutil, "disk_usage", lambda _: usage._replace(free=needed - 1)
    )
    refuse(f"run_dir={str(prepared)!r}: hidden states need 0.0 GB", "on another disk")
    assert not (prepared / "hidden_states").exists()


def test_a_file_that_the_disk_does_not_take(refuse, train, tmp_path, whole):
    prepared = prepare(tmp_path / "run" / "prepared", ROWS, 4)
    with largest_file(8192):
        refuse(f"run_dir={str(states_file(prepared, 7))!r}: ", "File too large", "make room, and")
    assert [path.name for path in (prepared / "hidden_states").iterdir()] == ["inputs.json"]
    assert train() == ""
    before, after = contents(whole / "hidden_states"), contents(prepared / "hidden_states")
    assert list(before.values()) == [after[prepared / "hidden_states" / p.name] for p in before]


def test_a_state_that_the_disk_does_not_take(refuse, train, prepared, tmp_path):
    """The head's checkpoint of 100 kB fits, its state of 300 kB does not."""
    head = tmp_path / "run" / "head"
    with largest_file(200_000):
        refuse(f"run_dir={str(head / 'state.pt')!r}: ", "make room, and run the same command")
    assert (head / "draft" / "model.safetensors").exists() and not (head / "state.pt").exists()
    assert train() == "" and (head / "state.pt").exists()


def test_answers_that_the_disk_does_not_take(tmp_path, monkeypatch):
    """The first part fits, the second does not; an engine that answers stands for vLLM's."""

    class Engine(ThreadPoolExecutor):
        def __init__(self, *_args, **_options):
            super().__init__(1)

    def generate(asked, _seed):
        return [{"input_ids": one.prompt, "loss_mask": one.prompt} for one in asked]

    monkeypatch.setattr(answers, "ProcessPoolExecutor", Engine)
    monkeypatch.setattr(answers, "_generate", generate)
    config = AnswersConfig(batch=1)
    asked = [answers.Request([1] * (5 if i < 4 else 500), 1, 0.0) for i in range(8)]
    parts = tmp_path / "parts"
    message = rf"run_dir='{parts / '00001.json'}': .*File too large; make room, and run the same"
    with largest_file(8192), pytest.raises(ValueError, match=message):
        answers.write_answers(config, tmp_path, asked, tmp_path, 0, Ranks())
    assert [path.name for path in parts.iterdir()] == ["00000.json"]
    answers.write_answers(config, tmp_path, asked, tmp_path, 0, Ranks())
    assert len(load_rows(tmp_path)) == 8


def test_a_state_of_another_head(train, refuse, prepared, tmp_path):
    assert train() == ""
    assert (tmp_path / "run" / "head" / "state.pt").exists()
    said = f"run_dir={str(tmp_path / 'run' / 'head')!r}: was prepared with another head."
    refuse(f"{said}draft_vocab_size: 64; ", "or remove this folder", draft_vocab_size=32)
    refuse(f"{said}intermediate_size: 48; ", intermediate_size=32)
    shutil.rmtree(prepared / "hidden_states")
    refuse(f"{said}taps: [1, 2]; ", taps=[1, 3])
