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
from vllm_eagle_pangu.training.config import AnswersConfig, HeadConfig, TargetConfig, TrainConfig
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
    with Ranks.joined(config.device) as ranks:
        stages = _Stages(config, ranks)
        if ranks.first and config.corpus is not None:
            prepare_corpus(config.corpus, stages.corpus, config.seed)
        if ranks.first and config.target is not None:
            stages.train_target(config.target)
        ranks.meet()
        if config.answers is not None:
            stages.write_answers(config.answers)
        if config.head is not None:
            stages.train_head(config.head)


class _Stages:
    def __init__(self, config: TrainConfig, ranks: Ranks) -> None:
        self.config, self.ranks, self.folder = config, ranks, Path(config.run_dir)
        self.corpus, self.prepared = self.folder / "corpus", self.folder / "prepared"

    def train_target(self, config: TargetConfig) -> None:
        """By the first rank alone."""
        tokenizer, folder = self.corpus / TOKENIZER_FOLDER, self.folder / "target"
        pretrain(config, self._token_stream(), tokenizer, folder, self.config.seed)

    def write_answers(self, answers: AnswersConfig) -> None:
        target, ranks, seed = self._target(), self.ranks, self.config.seed
        inputs = {"target": _digest(target), "answers": asdict(answers)}
        check_inputs(self.prepared, inputs, ranks)
        if (self.prepared / DATASET_FILE).exists():
            return
        stream = ranks.one_after_first(self._token_stream) if answers.prompts is None else None
        asked = requests(answers, AutoTokenizer.from_pretrained(target), stream, seed)
        write_answers(answers, target, asked, self.prepared, seed, ranks)

    def train_head(self, config: HeadConfig) -> None:
        prepared, ranks, target = self.prepared, self.ranks, self._target()
        if not (prepared / DATASET_FILE).exists():
            raise ValueError(f"{prepared} has no dataset: add an answers section, or run it first")
        check_inputs(prepared, {"target": _digest(target)}, ranks)
        teacher = Teacher(load_target(target).to(self.config.device), config.taps)
        write_hidden_states(prepared, teacher, ranks)
        train_head(config, teacher, prepared, self.folder / "head", self.config.seed, ranks)

    def _token_stream(self) -> np.ndarray:
        """The corpus of stage `corpus`, or the user's texts, tokenized once."""
        path, texts = self.corpus / TOKENS_FILE, self.config.texts
        if texts and not path.exists():
            tokenizer = AutoTokenizer.from_pretrained(self._target())
            write_stream(path, tokenizer, read_texts(texts))
        if not path.exists():
            mend = "give texts, add a corpus section, or run it first"
            raise ValueError(f"{path} is missing: {mend}")
        stream: np.ndarray = np.load(path, mmap_mode="r")
        return stream

    def _target(self) -> Path:
        name = self.config.target_model
        if name is None:
            return self.folder / "target" / "model"
        return fetch(name) if name in MODELS else Path(name)


def _digest(target: Path) -> str:
    """Of what decides a target's tokens and states, its weights by their size."""
    digest = hashlib.sha256()
    for path in sorted(target.iterdir()):
        weights = path.suffix in (".safetensors", ".bin")
        digest.update(path.name.encode())
        digest.update(str(path.stat().st_size).encode() if weights else path.read_bytes())
    return digest.hexdigest()[:16]
