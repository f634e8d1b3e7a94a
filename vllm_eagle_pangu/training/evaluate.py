# SPDX-License-Identifier: Apache-2.0
"""Acceptance of a head on held-out answers, without an engine.

The walk of chain drafting is replayed on the answers. Of a greedy answer an engine would accept
just as much, for greedy acceptance depends on the true tokens alone; of a sampled one about so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_eagle_pangu.training.draft_vocabulary import DraftVocabulary
from vllm_eagle_pangu.training.head import EagleHead, RolloutKeys
from vllm_eagle_pangu.training.packed_rows import PackedBatch
from vllm_eagle_pangu.training.rollout_attention import causal_mask
from vllm_eagle_pangu.training.teacher import Teacher


@dataclass(frozen=True)
class Acceptance:
    """Acceptance over all answers."""

    per_step: tuple[float, ...]
    """Share of places where rollout step k names the target's token."""
    chain_length: float
    """Tokens per target forward with chains of K drafts, bonus included."""
    top_length: float
    """The same if a draft counted whenever the token is among the head's best `width`."""

    def figures(self) -> dict[str, float]:
        steps = {f"held_out_{step}": share for step, share in enumerate(self.per_step)}
        return {**steps, "tau_chain": self.chain_length, "tau_top": self.top_length}


@torch.inference_mode()
def measure_acceptance(
    head: EagleHead,
    teacher: Teacher,
    vocabulary: DraftVocabulary,
    batches: Iterable[PackedBatch],
    steps: int,
    width: int = 4,
) -> Acceptance:
    """Replay drafting on every answer of `batches`."""
    hits, ranks = [], []
    for batch in batches:
        best = _drafted(head, teacher, vocabulary, batch, steps, width)
        anchors = best.shape[2]
        later = torch.arange(anchors)[None] + torch.arange(2, steps + 2)[:, None]
        # [K, B, A]: the token that step k is to name, where it is of the same answer.
        document = batch.document[:, later].transpose(0, 1)
        same = document == batch.document[:, :anchors]
        right = (best == batch.tokens[:, later].transpose(0, 1)[..., None]) & same[..., None]
        for row, answer in _answers(batch, anchors):
            hits.append(right[:, row, answer, 0])
            ranks.append(right[:, row, answer].any(-1))
    return Acceptance(
        per_step=tuple(torch.cat(hits, 1).float().mean(1).tolist()),
        chain_length=_tokens_per_forward(hits),
        top_length=_tokens_per_forward(ranks),
    )


def _answers(batch: PackedBatch, anchors: int) -> Iterable[tuple[int, Tensor]]:
    """Row and places of each answer: where the token after a place is spoken, and is the root."""
    document = batch.document
    root = batch.spoken[:, 1:] & (document[:, 1:] == document[:, :-1])
    for row in range(len(document)):
        for answer in document[row].unique().tolist():
            places = (root[row] & (document[row, :-1] == answer)).nonzero()[:, 0]
            places = places[places < anchors]
            if answer >= 0 and len(places):
                yield row, places


def _drafted(
    head: EagleHead,
    teacher: Teacher,
    vocabulary: DraftVocabulary,
    batch: PackedBatch,
    steps: int,
    width: int,
) -> Tensor:
    """The head's best target ids at every anchor -> [steps, B, T - steps - 1, width].

    Anchor t drafts the tokens at t + 2, t + 3, ...
    """
    batch = batch.to(teacher.device)
    anchors = batch.tokens.shape[1] - steps - 1
    dtype = head.fc.weight.dtype
    hidden = head.fc(batch.states[:, :anchors, :-1].flatten(2).to(dtype))
    embeds = teacher.embedding(batch.tokens).to(dtype)
    target_ids = vocabulary.target_ids.to(teacher.device)
    past, best = RolloutKeys(causal_mask(batch.document[:, :anchors])), []
    for step in range(steps):
        positions = torch.arange(step, step + anchors, device=teacher.device)
        part = embeds[:, step + 1 : step + 1 + anchors]
        hidden, normed, past = head.advance(part, hidden, positions, past)
        best.append(target_ids[head.lm_head(normed).topk(width).indices].cpu())
    return torch.stack(best)


def _tokens_per_forward(answers: list[Tensor]) -> float:
    """answers: of each [K, N] bool, row k column i: draft k from place i is right."""
    tokens = forwards = 0
    for right in answers:
        lengths = right.long().cumprod(0).sum(0).tolist()
        place = 0
        while place < len(lengths):
            place += lengths[place] + 1
            forwards += 1
        tokens += place
    return tokens / forwards
