# SPDX-License-Identifier: Apache-2.0
"""The stages of a training run, each from files to files under `run_dir`.

    corpus/     tokens.npy, tokenizer/, heldout.txt, heldout_prompts.jsonl
    target/     state.pt, log.csv, model/ (an openPangu checkpoint with its tokenizer)
    prepared/   the target's answers and hidden states, as the library speculators has them
    head/       state.pt, log.csv, acceptance.csv, draft/ (for vLLM's eagle3 and eagle_pangu)

A stage that is finished is skipped; one that was interrupted resumes.
"""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import AutoTokenizer, LlamaForCausalLM

from vllm_eagle_pangu.fetch import MODELS, fetch
from vllm_eagle_pangu.models.pangu_as_llama import save_llama_as_pangu
from vllm_eagle_pangu.training.answers import DATASET_FILE, requests, write_answers
from vllm_eagle_pangu.training.config import AnswersConfig, HeadConfig, TrainConfig
from vllm_eagle_pangu.training.corpus import TOKENIZER_FOLDER, TOKENS_FILE, prepare_corpus
from vllm_eagle_pangu.training.draft_vocabulary import vocabulary_of
from vllm_eagle_pangu.training.head import save_head
from vllm_eagle_pangu.training.hidden_states import write_hidden_states
from vllm_eagle_pangu.training.pretrain import pretrain
from vllm_eagle_pangu.training.ranks import Ranks
from vllm_eagle_pangu.training.run_folder import check_inputs
from vllm_eagle_pangu.training.teacher import Teacher, load_target
from vllm_eagle_pangu.training.token_stream import read_texts, write_stream
from vllm_eagle_pangu.training.train_head import train_head

PREPARED = "prepared"


def run_stages(config: TrainConfig) -> None:
    """Run every stage that the configuration has a section for, in order."""
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    if config.corpus is not None:
        prepare_corpus(config.corpus, _run_dir(config) / "corpus", config.seed)
    if config.target is not None:
        _run_target(config)
    with Ranks.joined(config.device) as ranks:
        if config.answers is not None:
            _write_answers(config, config.answers, ranks)
        if config.head is not None:
            _run_head(config, config.head, ranks)


def _run_target(config: TrainConfig) -> None:
    assert config.target is not None
    corpus = _run_dir(config) / "corpus"
    tokenizer_files = corpus / TOKENIZER_FOLDER
    vocab_size = Tokenizer.from_file(str(tokenizer_files / "tokenizer.json")).get_vocab_size()
    folder = _run_dir(config) / "target"

    def export(model: LlamaForCausalLM) -> None:
        save_llama_as_pangu(model, folder / "model")
        shutil.copytree(tokenizer_files, folder / "model", dirs_exist_ok=True)

    pretrain(config.target, _token_stream(config), vocab_size, folder, config.seed, export)


def _write_answers(config: TrainConfig, answers: AnswersConfig, ranks: Ranks) -> None:
    target = _target_folder(config)
    folder = _run_dir(config) / PREPARED
    if ranks.first:
        check_inputs(folder, {"target": _digest(target), "answers": asdict(answers)})
    ranks.meet()
    if (folder / DATASET_FILE).exists():
        return
    tokenizer = AutoTokenizer.from_pretrained(target)
    stream = None
    if answers.prompts is None:
        stream = ranks.one_after_first(lambda: _token_stream(config))
    asked = requests(answers, tokenizer, stream, config.seed)
    write_answers(answers, target, asked, folder, config.seed, ranks)


def _run_head(config: TrainConfig, head_config: HeadConfig, ranks: Ranks) -> None:
    prepared, folder = _run_dir(config) / PREPARED, _run_dir(config) / "head"
    if not (prepared / DATASET_FILE).exists():
        raise ValueError(f"{prepared} has no dataset: add an answers section, or run it first")
    target = _target_folder(config)
    if ranks.first:
        check_inputs(prepared, {"target": _digest(target)})
    teacher = Teacher(load_target(target).to(config.device), head_config.taps)
    write_hidden_states(prepared, teacher, ranks)
    sizes = teacher.config.vocab_size, head_config.draft_vocab_size
    vocabulary = ranks.one_after_first(lambda: vocabulary_of(prepared, *sizes))
    train_head(
        head_config,
        teacher,
        vocabulary,
        prepared,
        folder,
        config.seed,
        lambda head: save_head(head, vocabulary, folder / "draft"),
        ranks,
    )


def _token_stream(config: TrainConfig) -> np.ndarray:
    """The corpus of stage `corpus`, or the user's texts, tokenized once."""
    folder = _run_dir(config) / "corpus"
    if config.texts and not (folder / TOKENS_FILE).exists():
        tokenizer = AutoTokenizer.from_pretrained(_target_folder(config))
        write_stream(folder / TOKENS_FILE, tokenizer, read_texts(config.texts))
    if not (folder / TOKENS_FILE).exists():
        raise ValueError(
            f"{folder / TOKENS_FILE} is missing: give texts, add a corpus section, or run it first"
        )
    stream: np.ndarray = np.load(folder / TOKENS_FILE, mmap_mode="r")
    return stream


def _run_dir(config: TrainConfig) -> Path:
    return Path(config.run_dir)


def _digest(target: Path) -> str:
    """Of what decides a target's tokens and states, its weights by their size."""
    digest = hashlib.sha256()
    for path in sorted(target.iterdir()):
        weights = path.suffix in (".safetensors", ".bin")
        digest.update(path.name.encode())
        digest.update(str(path.stat().st_size).encode() if weights else path.read_bytes())
    return digest.hexdigest()[:16]


def _target_folder(config: TrainConfig) -> Path:
    if config.target_model in MODELS:
        return fetch(config.target_model)
    if config.target_model is not None:
        return Path(config.target_model)
    return _run_dir(config) / "target" / "model"
