# SPDX-License-Identifier: Apache-2.0
"""Stage `generate`: the target continues snippets of the corpus; the head trains on that.

A head that only saw human text would be asked, when drafting, about text it never saw: the
target's own. Each sample is a snippet and its continuation, together always `length` tokens.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vllm_eagle_pangu.training.config import GenerateConfig
from vllm_eagle_pangu.training.windows import TokenWindows

SAMPLES_FILE = "samples.npz"


@torch.inference_mode()
def continue_tokens(
    model: Any, prompt: Tensor, length: int, temperature: float, generator: torch.Generator
) -> Tensor:
    """prompt: [B, P] -> [B, length]; temperature 0 is greedy."""
    tokens = prompt.new_empty(prompt.shape[0], length)
    tokens[:, : prompt.shape[1]] = prompt
    fed, cache = prompt, None
    for place in range(prompt.shape[1], length):
        output = model(input_ids=fed, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = output.past_key_values
        logits = output.logits[:, -1].float()
        if temperature == 0.0:
            fed = logits.argmax(dim=-1, keepdim=True)
        else:
            probs = torch.softmax(logits / temperature, dim=-1)
            fed = torch.multinomial(probs, 1, generator=generator)
        tokens[:, place] = fed[:, 0]
    return tokens


def generate_samples(
    config: GenerateConfig, model: Any, stream: np.ndarray, folder: Path, seed: int
) -> None:
    """Write `samples.npz`: tokens [N, length] and prompt lengths [N].

    Batches take turns through `temperatures` and `prompt_lengths`. Finished batches are kept
    as files of their own until the end, so an interrupted run loses one batch at most.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / SAMPLES_FILE).exists():
        return
    windows = TokenWindows(stream, config.length, config.batch, seed)
    started, made = time.monotonic(), 0
    batches = config.samples // config.batch
    for index in range(batches):
        part = _batch_file(folder, index)
        if part.exists():
            continue
        if config.max_minutes and time.monotonic() - started > 60 * config.max_minutes:
            break
        temperature = config.temperatures[index % len(config.temperatures)]
        prompt_length = config.prompt_lengths[
            index // len(config.temperatures) % len(config.prompt_lengths)
        ]
        prompt = windows.batch(index)[:, :prompt_length]
        generator = torch.Generator(model.device).manual_seed(seed * 1_000_003 + index)
        prompt = prompt.to(model.device)
        tokens = continue_tokens(model, prompt, config.length, temperature, generator).cpu()
        partial = folder / "partial.npy"
        np.save(partial, np.concatenate([np.full((len(tokens), 1), prompt_length), tokens], 1))
        partial.rename(part)
        made += tokens[:, prompt_length:].numel()
        seconds = time.monotonic() - started
        left = seconds / (index + 1) * (batches - index - 1) / 60
        print(
            f"generate {index + 1}/{batches} temperature {temperature} "
            f"prompt {prompt_length} tok/s {made / seconds:.0f} ETA {left:.1f} min",
            flush=True,
        )
    parts = [part for index in range(batches) if (part := _batch_file(folder, index)).exists()]
    rows = np.concatenate([np.load(part) for part in parts])
    np.savez(folder / SAMPLES_FILE, prompt_lengths=rows[:, 0], tokens=rows[:, 1:])
    for part in parts:
        part.unlink()


def _batch_file(folder: Path, index: int) -> Path:
    return folder / f"batch-{index:04d}.npy"
