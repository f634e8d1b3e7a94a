# SPDX-License-Identifier: Apache-2.0
"""The tokens that a head drafts from, by frequency: with all, its output layer would dwarf it."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vllm_eagle_pangu.config import refusal

FREQUENCIES_FILE = "token_freq.pt"
"""How often the target said a token: a dict, as speculators writes it."""


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
        return torch.isin(torch.arange(self.vocab_size), self.target_ids)

    def coverage(self, counts: Tensor) -> float:
        """Share of the counted tokens that can be drafted. counts: [V]."""
        return float(counts[self.target_ids].sum() / counts.sum().clamp_min(1))


def vocabulary_of(prepared: Path, vocab_size: int, size: int) -> DraftVocabulary:
    """The `size` most frequent ids of the answers in `prepared`; ties go to the lower id.

    Made once: kept as `d2t-{size}.npy` and `t2d-{size}.npy`, where speculators keeps and finds
    them, too.

    Raises:
        ValueError: `size` is not in 1..V-1 (vLLM refuses a d2t for equal vocabularies).
    """
    if not 0 < size < vocab_size:
        problem = f"the target's vocabulary has {vocab_size}"
        mend = "choose at least 1 and less than that"
        raise refusal("head.draft_vocab_size", size, problem, mend)
    offsets, mask = (prepared / f"{name}-{size}.npy" for name in ("d2t", "t2d"))
    if offsets.exists():
        target_ids = torch.from_numpy(np.load(offsets)) + torch.arange(size)
        return DraftVocabulary(target_ids, vocab_size)
    said = torch.load(prepared / FREQUENCIES_FILE, weights_only=True)
    counts = torch.tensor([said.get(token, 0) for token in range(vocab_size)])
    order = torch.sort(counts, descending=True, stable=True).indices
    vocabulary = DraftVocabulary(order[:size].sort().values, vocab_size)
    np.save(mask, vocabulary.t2d.numpy())
    np.save(offsets, vocabulary.d2t.numpy())
    print(f"draft vocabulary: {vocabulary.coverage(counts):.2%} of the answers' tokens")
    return vocabulary
