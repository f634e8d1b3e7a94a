# SPDX-License-Identifier: Apache-2.0
"""The stages of a training run, each from files to files under `run_dir`.

    corpus/     tokens.npy, tokenizer/, heldout.txt, heldout_prompts.jsonl
    target/     state.pt, log.csv, model/ (an openPangu checkpoint with its tokenizer)
    prepared/   the target's answers and hidden states, as the library speculators has them
    head/       state.pt, log.csv, acceptance.csv, draft/ (for vLLM's eagle3 and eagle_pangu)

A stage that is finished is skipped; one that was interrupted resumes.
"""

import hashlib
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from transformers import AutoTokenizer

from vllm_eagle_pangu.fetch import MODELS, fetch
from vllm_eagle_pangu.models.pangu_as_llama import load_target
from vllm_eagle_pangu.training.answers import DATASET_FILE, requests, write_answers
from vllm_eagle_pangu.training.config import AnswersConfig, HeadConfig, TrainConfig
from vllm_eagle_pangu.training.corpus import TOKENIZER_FOLDER, TOKENS_FILE, prepare_corpus
from vllm_eagle_pangu.training.hidden_states import Teacher, write_hidden_states
from vllm_eagle_pangu.training.pretrain import pretrain
from vllm_eagle_pangu.training.run_folder import Ranks, check_inputs
from vllm_eagle_pangu.training.token_stream import read_texts, write_stream
from vllm_eagle_pangu.training.train_head import train_head


def run_stages(config: TrainConfig) -> None:
    """Run every stage that the configuration has a section for, in order."""
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    folder, seed = Path(config.run_dir), config.seed
    with Ranks.joined(config.device) as ranks:
        if ranks.first and config.corpus is not None:
            target = None if config.target_model is None else _target(config)
            tokenizer = None if target is None else AutoTokenizer.from_pretrained(target)
            prepare_corpus(config.corpus, folder / "corpus", seed, tokenizer)
        if ranks.first and config.target is not None:
            made = folder / "corpus" / TOKENIZER_FOLDER
            pretrain(config.target, _token_stream(config), made, folder / "target", seed)
        ranks.meet()
        if config.answers is not None:
            _write_answers(config, config.answers, folder / "prepared", ranks)
        if config.head is not None:
            _train_head(config, config.head, folder / "prepared", ranks)


def _write_answers(
    config: TrainConfig, answers: AnswersConfig, prepared: Path, ranks: Ranks
) -> None:
    target = _target(config)
    check_inputs(prepared, {"target": _digest(target), "answers": asdict(answers)}, ranks)
    if (prepared / DATASET_FILE).exists():
        return
    snippets = answers.prompts is None
    stream = ranks.one_after_first(lambda: _token_stream(config)) if snippets else None
    asked = requests(answers, AutoTokenizer.from_pretrained(target), stream, config.seed)
    write_answers(answers, target, asked, prepared, config.seed, ranks)


def _train_head(config: TrainConfig, head: HeadConfig, prepared: Path, ranks: Ranks) -> None:
    target = _target(config)
    if not (prepared / DATASET_FILE).exists():
        raise ValueError(f"{prepared} has no dataset: add an answers section, or run it first")
    check_inputs(prepared, {"target": _digest(target)}, ranks)
    teacher = Teacher(load_target(target).to(config.device), head.taps)
    write_hidden_states(prepared, teacher, ranks)
    train_head(head, teacher, prepared, Path(config.run_dir) / "head", config.seed, ranks)


def _token_stream(config: TrainConfig) -> np.ndarray:
    """The corpus of stage `corpus`, or the user's texts, tokenized once."""
    path = Path(config.run_dir) / "corpus" / TOKENS_FILE
    if config.texts and not path.exists():
        tokenizer = AutoTokenizer.from_pretrained(_target(config))
        write_stream(path, tokenizer, read_texts(config.texts))
    if not path.exists():
        raise ValueError(f"{path} is missing: give texts, add a corpus section, or run it first")
    return np.load(path, mmap_mode="r")


def _target(config: TrainConfig) -> Path:
    name = config.target_model
    if name is None:
        return Path(config.run_dir) / "target" / "model"
    return fetch(name) if name in MODELS else Path(name)


def _digest(target: Path) -> str:
    """Of what decides a target's tokens and states, its weights by their size."""
    digest = hashlib.sha256()
    for path in sorted(target.iterdir()):
        weights = path.suffix in (".safetensors", ".bin")
        digest.update(path.name.encode())
        digest.update(str(path.stat().st_size).encode() if weights else path.read_bytes())
    return digest.hexdigest()[:16]
