# SPDX-License-Identifier: Apache-2.0
"""The tokens that a head drafts from, by frequency: with all, its output layer would dwarf it."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vllm_eagle_pangu.config import refusal

FREQUENCIES_FILE = "token_freq.pt"
"""How often the target said a token: a dict, as speculators writes it."""


def offsets_and_mask(target_ids: Tensor, vocab_size: int) -> tuple[Tensor, Tensor]:
    """What checkpoints call d2t and t2d. target_ids: [V_d] int64, of each draft id; ascending.

    Returns:
        [V_d] int64, target id = draft id + d2t[draft id]; and [V] bool, which target ids can be
        drafted.
    """
    offsets = target_ids - torch.arange(len(target_ids))
    return offsets, torch.isin(torch.arange(vocab_size), target_ids)


def draft_vocabulary(prepared: Path, vocab_size: int, size: int) -> Tensor:
    """The `size` most frequent ids of the answers in `prepared`; ties go to the lower id.

    Gives the target id of each draft id, [size] int64, ascending.

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
        return torch.from_numpy(np.load(offsets)) + torch.arange(size)
    said = torch.load(prepared / FREQUENCIES_FILE, weights_only=True)
    counts = torch.tensor([said.get(token, 0) for token in range(vocab_size)])
    order = torch.sort(counts, descending=True, stable=True).indices
    target_ids = order[:size].sort().values
    d2t, t2d = offsets_and_mask(target_ids, vocab_size)
    np.save(mask, t2d.numpy())
    np.save(offsets, d2t.numpy())
    coverage = float(counts[target_ids].sum() / counts.sum().clamp_min(1))
    print(f"draft vocabulary: {coverage:.2%} of the answers' tokens")
    return target_ids
