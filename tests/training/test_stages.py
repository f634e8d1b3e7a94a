# SPDX-License-Identifier: Apache-2.0
"""The stages end to end on tiny files: a corpus and a target of our own, a head for a user's."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from vllm_eagle_pangu.cli import main
from vllm_eagle_pangu.training import corpus
from vllm_eagle_pangu.training.config import CorpusConfig
from vllm_eagle_pangu.training.hidden_states import load_rows
from vllm_eagle_pangu.training.token_stream import read_texts

from .prepared import load_head

SOURCE = '''
class Thing{n}:
    """A thing."""

    def get_{n}(self, key):
        """Return the value of key."""
        return self._values[key] + {n}

    def put(self, key, value):
        self._values[key] = value
'''

RECIPE = """
run_dir: {run}
threads: 1
corpus: {{vocab_size: 300, packages: [fake], held_out_packages: 200, held_out_prompts: 5}}
target:
  {{hidden_size: 64, intermediate_size: 48, layers: 2, heads: 2, kv_heads: 1, head_dim: 32,
  max_positions: 128, sequence_length: 32, long_sequence_length: 64, tokens_per_step: 128,
  micro_batch_tokens: 64, max_tokens: 512, compile: false}}
"""

HEAD_RECIPE = """
run_dir: {run}
threads: 1
target_model: {target}
texts: ["{texts}"]
answers:
  {{samples: 10, max_tokens: 16, batch: 2, prompt_lengths: [8], max_model_len: 64,
  corpus_share: 0.2, kv_cache_bytes: 16777216}}
head:
  {{taps: [1, 2], draft_vocab_size: 64, intermediate_size: 48, rollout_steps: 3, batch: 2,
  length: 32, held_out: 3, max_tokens: 200, log_every: 1, compile: false}}
"""


@pytest.fixture
def fake_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "fake"
    root.mkdir()
    for number in range(30):
        (root / f"module_{number}.py").write_text(SOURCE.format(n=number))
    (root / "copy.py").write_text(SOURCE.format(n=0))
    monkeypatch.setattr(corpus, "package_root", lambda package: root)
    return root


def write(path: Path, text: str) -> list[str]:
    """The command line that trains by `text`."""
    path.write_text(text)
    return ["train", "--config", str(path)]


@pytest.mark.engine
def test_corpus_target_and_a_head_for_it_come_from_two_commands(tmp_path, fake_package):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    assert main(write(tmp_path / "demo.yaml", RECIPE.format(run=ours))) == 0
    tokenizer = Tokenizer.from_file(str(ours / "corpus" / "tokenizer" / "tokenizer.json"))
    held_out = (ours / "corpus" / "heldout.txt").read_text().split()
    text = tokenizer.decode(np.load(ours / "corpus" / "tokens.npy").tolist())
    for number in range(30):
        assert (f"get_{number}(" in text) == (f"fake/module_{number}.py" not in held_out)
    prompts = (ours / "corpus" / "heldout_prompts.jsonl").read_text().splitlines()
    assert len(prompts) == 5 and set(json.loads(prompts[0])) == {"id", "source", "prompt"}
    target = ours / "target" / "model"
    assert AutoTokenizer.from_pretrained(target)("a\n    b").input_ids[0] == 1

    recipe = HEAD_RECIPE.format(run=theirs, target=target, texts=fake_package / "*.py")
    assert main(write(tmp_path / "head.yaml", recipe)) == 0
    head = load_head(theirs / "head" / "draft")
    assert len(head.target_ids) == 64 and head.config.eagle_aux_hidden_state_layer_ids == [
        1,
        2,
    ]
    rows = load_rows(theirs / "prepared")
    spoken = [int(row["loss_mask"].sum()) for row in rows]
    # Snippets of 8 that the target goes on with, and plain windows.
    assert sorted(len(row["input_ids"]) - n for row, n in zip(rows, spoken, strict=True)) == (
        [0, 0] + [8] * 10
    )
    assert all(0 < n <= 24 for n in spoken)
    states = load_file(theirs / "prepared" / "hidden_states" / "hs_4.safetensors")
    assert torch.equal(states["token_ids"], rows[4]["input_ids"])
    assert states["hidden_states"].shape == (len(rows[4]["input_ids"]), 3, 64)
    assert states["hidden_states"].dtype == torch.bfloat16
    counts = torch.load(theirs / "prepared" / "token_freq.pt")
    assert sum(counts.values()) == sum(spoken)
    columns = (theirs / "head" / "log.csv").read_text().splitlines()[0]
    assert columns == "step,tokens,seconds,loss,match_0,match_1,match_2,grad_norm,lr_factor"


def test_a_corpus_for_a_target_that_there_is_has_its_tokens(tmp_path, fake_package, tiny_pangu):
    """Regression: a tokenizer was made all the same, whose ids the target read as others."""
    run = tmp_path / "run"
    recipe = f"""
run_dir: {run}
target_model: {tiny_pangu}
corpus: {{packages: [fake], held_out_packages: 200, held_out_prompts: 5}}
"""
    assert main(write(tmp_path / "a.yaml", recipe)) == 0
    text = AutoTokenizer.from_pretrained(tiny_pangu).decode(np.load(run / "corpus" / "tokens.npy"))
    assert "return self._values[key] + 7" in text
    assert not (run / "corpus" / "tokenizer").exists()
    assert len((run / "corpus" / "heldout_prompts.jsonl").read_text().splitlines()) == 5


@pytest.mark.engine
def test_prepared_answers_are_of_their_target_and_their_section(tmp_path, tiny_pangu, capsys):
    (tmp_path / "asked.jsonl").write_text('{"prompt": "def f"}\n{"prompt": "x = "}\n' * 2)
    recipe = """
run_dir: {run}
target_model: {target}
answers: {{prompts: {asked}, samples: {samples}, max_tokens: 4, batch: 1,
  max_model_len: 64, kv_cache_bytes: 16777216}}
""".format
    told = {"run": tmp_path / "run", "asked": tmp_path / "asked.jsonl", "target": tiny_pangu}
    assert main(write(tmp_path / "a.yaml", recipe(samples=3, **told))) == 0
    rows = load_rows(tmp_path / "run" / "prepared")
    asked = {tuple(row["input_ids"][: -int(row["loss_mask"].sum())].tolist()) for row in rows}
    assert len(rows) == 3 and len(asked) == 2
    assert main(write(tmp_path / "b.yaml", recipe(samples=4, **told))) == 2
    assert "was prepared with another answers" in capsys.readouterr().err


def test_same_contents_are_taken_once_and_sides_follow_names(fake_package):
    config = CorpusConfig(packages=("fake",), held_out_packages=200)
    training, held_out = corpus.split_corpus(config)
    assert len(training) + len(held_out) == 30 and 0 < len(held_out) < 15
    assert all(corpus.is_held_out(file.name, 200) for file in held_out)
    assert not any(corpus.is_held_out(file.name, 200) for file in training)
    assert corpus.is_held_out("stdlib/a.py", 1000) and not corpus.is_held_out("stdlib/a.py", 0)


def test_a_corpus_with_pip_leaves_setuptools_usable():
    """Regression: the stages behind it compile, which imports setuptools, and died."""
    asks = "from vllm_eagle_pangu.training.corpus import package_root; package_root('pip')"
    subprocess.run([sys.executable, "-c", f"{asks}; import setuptools"], check=True)


def test_a_package_that_is_not_installed_is_named():
    with pytest.raises(ValueError, match="'no_such_package': is not an installed package"):
        corpus.package_root("no_such_package")


def test_a_head_without_generated_samples_names_the_missing_stage(tmp_path, capsys):
    recipe = f"run_dir: {tmp_path}\nhead: {{taps: [1], draft_vocab_size: 4, max_tokens: 1}}\n"
    assert main(write(tmp_path / "head.yaml", recipe)) == 2
    assert "add an answers section" in capsys.readouterr().err


def test_json_lines_need_a_text(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"prompt": "two"}\n')
    with pytest.raises(ValueError, match=r"texts='.*a.jsonl': line 2 holds no text; write one"):
        list(read_texts((str(tmp_path / "*.jsonl"),)))
    with pytest.raises(ValueError, match="matches no file"):
        list(read_texts((str(tmp_path / "*.md"),)))


def test_bpe_gives_an_indented_line_break_one_token():
    tokenizer = corpus.train_bpe([SOURCE.format(n=n) for n in range(20)], 320)
    text = "x\n        y\tz é\n"
    encoding = tokenizer.encode(text)
    assert "\u010a" + 8 * "\u0120" in encoding.tokens
    assert tokenizer.decode(encoding.ids) == text
    assert torch.tensor(encoding.ids).max() < 320
