# SPDX-License-Identifier: Apache-2.0
"""The part of the target's vocabulary that the head drafts from, chosen by frequency."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class DraftVocabulary:
    """`target_ids[i]` is the target id of draft id i; ascending, so offsets never fall."""

    target_ids: Tensor
    vocab_size: int

    def __post_init__(self) -> None:
        assert self.target_ids.dtype == torch.int64
        assert bool((self.target_ids.diff() > 0).all())

    @property
    def d2t(self) -> Tensor:
        """[V_d] int64 offsets: target id = draft id + d2t[draft id] (vLLM's convention)."""
        return self.target_ids - torch.arange(len(self.target_ids))

    @property
    def t2d(self) -> Tensor:
        """[V] bool: whether a target id can be drafted."""
        mask = torch.zeros(self.vocab_size, dtype=torch.bool)
        mask[self.target_ids] = True
        return mask

    def coverage(self, counts: Tensor) -> float:
        """Share of the counted tokens that can be drafted. counts: [V]."""
        return float(counts[self.target_ids].sum() / counts.sum().clamp_min(1))


def most_frequent(counts: Tensor, size: int) -> DraftVocabulary:
    """The `size` most frequent target ids; ties go to the lower id.

    Args:
        counts: [V] int64, how often the target emitted each id.

    Raises:
        ValueError: `size` is not in 1..V-1 (vLLM refuses a d2t for equal vocabularies).
    """
    if not 0 < size < len(counts):
        raise ValueError(
            f"head.draft_vocab_size={size} must be at least 1 and below the target's "
            f"vocabulary of {len(counts)}"
        )
    order = torch.sort(counts, descending=True, stable=True).indices
    return DraftVocabulary(order[:size].sort().values, len(counts))


def count_tokens(tokens: Tensor, vocab_size: int) -> Tensor:
    """How often each id occurs: any integer shape -> [V] int64."""
    return torch.bincount(tokens.flatten().long(), minlength=vocab_size)
