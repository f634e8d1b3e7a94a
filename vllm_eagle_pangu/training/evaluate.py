# SPDX-License-Identifier: Apache-2.0
"""Acceptance of a head on held-out prompts, without an engine.

The target continues each prompt greedily; then the walk of chain drafting is replayed on the
finished text. Greedy acceptance depends on the true tokens alone, so the replay accepts what
an engine would.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vllm_eagle_pangu.training.draft_vocabulary import DraftVocabulary
from vllm_eagle_pangu.training.generate import continue_tokens
from vllm_eagle_pangu.training.head import EagleHead, RolloutKeys
from vllm_eagle_pangu.training.teacher import Teacher


@dataclass(frozen=True)
class Acceptance:
    """Greedy acceptance over all prompts."""

    per_step: tuple[float, ...]
    """Share of places where rollout step k names the target's token."""
    chain_length: float
    """Tokens per target forward with chains of K drafts, bonus included."""
    top_length: float
    """The same if a draft counted whenever the token is among the head's best `width`."""

    def __str__(self) -> str:
        steps = " ".join(f"{share:.3f}" for share in self.per_step)
        return (
            f"per step {steps}; tokens per target forward {self.chain_length:.2f} with chains, "
            f"below {self.top_length:.2f} with trees"
        )


def measure_acceptance(
    head: EagleHead,
    teacher: Teacher,
    vocabulary: DraftVocabulary,
    prompts: list[list[int]],
    new_tokens: int,
    steps: int,
    width: int = 4,
) -> Acceptance:
    """Continue every prompt (lists of token ids) greedily and replay drafting on it."""
    hits, ranks = [], []
    for ids in prompts:
        length = len(ids) + new_tokens + steps
        prompt = torch.tensor([ids], device=teacher.device)
        generator = torch.Generator(teacher.device)
        text = continue_tokens(teacher.model, prompt, length, 0.0, generator)
        best = _drafted(head, teacher, vocabulary, text, steps, width)
        anchor = len(ids) - 1  # the root is the first new token: states end before it
        wanted = torch.stack([text[0, anchor + k + 2 :][:new_tokens] for k in range(steps)])
        found = best[:, anchor : anchor + new_tokens] == wanted[..., None]
        hits.append(found[..., 0])
        ranks.append(found.any(-1))
    return Acceptance(
        per_step=tuple(torch.cat(hits, 1).float().mean(1).tolist()),
        chain_length=_tokens_per_forward(hits),
        top_length=_tokens_per_forward(ranks),
    )


def read_prompts(path: Path, tokenizer: Any) -> list[list[int]]:
    """Token ids of the prompts of a JSON-lines file with "prompt"."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [tokenizer(json.loads(line)["prompt"])["input_ids"] for line in lines]


@torch.inference_mode()
def _drafted(
    head: EagleHead,
    teacher: Teacher,
    vocabulary: DraftVocabulary,
    text: Tensor,
    steps: int,
    width: int,
) -> Tensor:
    """The head's best target ids at every anchor of text [1, T] -> [steps, T - steps, width].

    Anchor t drafts the tokens at t + 2, t + 3, ...
    """
    anchors = text.shape[1] - steps
    dtype = head.fc.weight.dtype
    hidden = head.fc(teacher.read(text).taps[:, :anchors].to(dtype))
    embeds = teacher.embedding(text).to(dtype)
    target_ids = vocabulary.target_ids.to(text.device)
    past, best = RolloutKeys(), []
    for step in range(steps):
        positions = torch.arange(step, step + anchors, device=text.device)
        part = embeds[:, step + 1 : step + 1 + anchors]
        hidden, normed, past = head.advance(part, hidden, positions, past)
        best.append(target_ids[head.lm_head(normed)[0].topk(width).indices])
    return torch.stack(best)


def _tokens_per_forward(texts: list[Tensor]) -> float:
    """texts: per prompt [K, N] bool, row k column i: draft k from place i is right."""
    tokens = forwards = 0
    for right in texts:
        lengths = right.long().cumprod(0).sum(0).tolist()
        place = 0
        while place < len(lengths):
            place += lengths[place] + 1
            forwards += 1
        tokens += place
    return tokens / forwards
