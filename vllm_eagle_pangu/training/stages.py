# SPDX-License-Identifier: Apache-2.0
"""The stages of a training run, each from files to files under `run_dir`.

    corpus/     tokens.npy, tokenizer/, heldout.txt, heldout_prompts.jsonl
    target/     state.pt, log.csv, model/ (an openPangu checkpoint with its tokenizer)
    generated/  samples.npz
    head/       state.pt, log.csv, draft/ (a checkpoint for vLLM's eagle3 and eagle_pangu)

A stage that is finished is skipped; one that was interrupted resumes.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import AutoTokenizer, LlamaForCausalLM

from vllm_eagle_pangu.models.pangu_as_llama import save_llama_as_pangu
from vllm_eagle_pangu.training.config import HeadConfig, TrainConfig
from vllm_eagle_pangu.training.draft_vocabulary import (
    DraftVocabulary,
    count_tokens,
    most_frequent,
)
from vllm_eagle_pangu.training.evaluate import measure_acceptance, read_prompts
from vllm_eagle_pangu.training.generate import SAMPLES_FILE, generate_samples
from vllm_eagle_pangu.training.head import EagleHead
from vllm_eagle_pangu.training.head_checkpoint import save_head
from vllm_eagle_pangu.training.prepare import (
    PROMPTS_FILE,
    TOKENIZER_FOLDER,
    TOKENS_FILE,
    prepare_corpus,
)
from vllm_eagle_pangu.training.pretrain import pretrain
from vllm_eagle_pangu.training.teacher import Teacher, load_target
from vllm_eagle_pangu.training.texts import tokenize_texts
from vllm_eagle_pangu.training.train_head import train_head
from vllm_eagle_pangu.training.windows import TokenWindows

EVALUATED_PROMPTS, EVALUATED_TOKENS = 32, 64


def run_stages(config: TrainConfig) -> None:
    """Run every stage that the configuration has a section for, in order."""
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    if config.corpus is not None:
        prepare_corpus(config.corpus, _run_dir(config) / "corpus", config.seed)
    if config.target is not None:
        _run_target(config)
    if config.generate is not None:
        model = load_target(_target_folder(config)).to(config.device)
        stream = _token_stream(config)
        generate_samples(config.generate, model, stream, _generated(config), config.seed)
    if config.head is not None:
        _run_head(config, config.head)


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


def _run_head(config: TrainConfig, head_config: HeadConfig) -> None:
    samples = _generated(config) / SAMPLES_FILE
    if not samples.exists():
        raise ValueError(f"{samples} is missing: add a generate section, or run it first")
    stored = np.load(samples)
    tokens = torch.from_numpy(stored["tokens"].astype(np.int64))
    lengths = stored["prompt_lengths"].tolist()
    teacher = Teacher(load_target(_target_folder(config)).to(config.device), head_config.taps)
    own = torch.cat([row[length:] for row, length in zip(tokens, lengths, strict=True)])
    counts = count_tokens(own, teacher.config.vocab_size)
    vocabulary = most_frequent(counts, head_config.draft_vocab_size)
    print(f"draft vocabulary covers {vocabulary.coverage(counts):.2%} of the target's outputs")
    folder = _run_dir(config) / "head"
    head = train_head(
        head_config,
        teacher,
        vocabulary,
        _mixed_batches(tokens, _token_stream(config), head_config, config.seed),
        folder,
        config.seed,
        lambda head: save_head(head, vocabulary, folder / "draft"),
    )
    _report_acceptance(config, head, teacher, vocabulary, head_config.rollout_steps)


def _report_acceptance(
    config: TrainConfig, head: EagleHead, teacher: Teacher, vocabulary: DraftVocabulary, steps: int
) -> None:
    """Print greedy acceptance on held-out prompts, where stage `corpus` left some."""
    path = _run_dir(config) / "corpus" / PROMPTS_FILE
    if path.exists():
        tokenizer = AutoTokenizer.from_pretrained(_target_folder(config))
        prompts = read_prompts(path, tokenizer)[:EVALUATED_PROMPTS]
        found = measure_acceptance(head, teacher, vocabulary, prompts, EVALUATED_TOKENS, steps)
        print(f"held-out greedy acceptance: {found}", flush=True)


def _mixed_batches(
    samples: Tensor, stream: np.ndarray, config: HeadConfig, seed: int
) -> Callable[[int], Tensor]:
    """Batches [B, T]: the target's own samples, and `corpus_share` of corpus windows."""
    length = samples.shape[1]
    from_corpus = round(config.batch * config.corpus_share)
    from_samples = config.batch - from_corpus
    windows = TokenWindows(stream, length - 1, max(1, from_corpus), seed)

    def batch_at(step: int) -> Tensor:
        rows = []
        for row in range(step * from_samples, (step + 1) * from_samples):
            turn, place = divmod(row, len(samples))
            order = np.random.default_rng([seed, turn]).permutation(len(samples))
            rows.append(samples[int(order[place])])
        if from_corpus:
            rows.extend(windows.batch(step))
        return torch.stack(rows)

    return batch_at


def _token_stream(config: TrainConfig) -> np.ndarray:
    """The corpus of stage `corpus`, or the user's texts, tokenized once."""
    folder = _run_dir(config) / "corpus"
    if config.texts and not (folder / TOKENS_FILE).exists():
        tokenizer = AutoTokenizer.from_pretrained(_target_folder(config))
        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / TOKENS_FILE, tokenize_texts(tokenizer, config.texts))
    if not (folder / TOKENS_FILE).exists():
        raise ValueError(
            f"{folder / TOKENS_FILE} is missing: give texts, add a corpus section, or run it first"
        )
    stream: np.ndarray = np.load(folder / TOKENS_FILE, mmap_mode="r")
    return stream


def _run_dir(config: TrainConfig) -> Path:
    return Path(config.run_dir)


def _generated(config: TrainConfig) -> Path:
    return _run_dir(config) / "generated"


def _target_folder(config: TrainConfig) -> Path:
    if config.target_model is not None:
        return Path(config.target_model)
    return _run_dir(config) / "target" / "model"
