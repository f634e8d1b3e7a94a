# SPDX-License-Identifier: Apache-2.0
"""Batches of fixed-length windows over a token stream, in a seeded order."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


class TokenWindows:
    """Endless shuffled windows of `length + 1` tokens; batch `i` depends on seed and `i` only.

    Each pass over the stream starts at another offset, so windows differ between passes.
    """

    def __init__(self, stream: np.ndarray, length: int, batch: int, seed: int) -> None:
        if len(stream) < 2 * length + 1:
            raise ValueError(
                f"sequence length {length} needs {2 * length + 1} tokens, the corpus has "
                f"{len(stream)}: add files or shorten the sequence"
            )
        self._stream, self.length, self._batch, self._seed = stream, length, batch, seed
        self._per_pass = (len(stream) - length - 1) // length
        self._order: tuple[int, np.ndarray, int] | None = None

    def batch(self, index: int) -> Tensor:
        """Batch number `index`: [batch, length + 1] int64."""
        rows = [self._window(index * self._batch + row) for row in range(self._batch)]
        return torch.from_numpy(np.stack(rows).astype(np.int64))

    def _window(self, number: int) -> np.ndarray:
        turn, place = divmod(number, self._per_pass)
        if self._order is None or self._order[0] != turn:
            rng = np.random.default_rng([self._seed, self.length, turn])
            offset = int(rng.integers(self.length))
            self._order = (turn, rng.permutation(self._per_pass), offset)
        _, order, offset = self._order
        start = int(order[place]) * self.length + offset
        return self._stream[start : start + self.length + 1]
