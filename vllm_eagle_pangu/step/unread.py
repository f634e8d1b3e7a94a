# SPDX-License-Identifier: Apache-2.0
"""Committed rows that a head has yet to read: it reads those of several steps at once."""

from collections.abc import Sequence

import numpy as np
import torch

from vllm_eagle_pangu.kernels.draft_batch import DraftRows
from vllm_eagle_pangu.kernels.indices import index_range
from vllm_eagle_pangu.step.head import Head
from vllm_eagle_pangu.step.missed import Missed

# So many are read at once: the head's weights then come from memory once, not once a step.
ENOUGH = 64
# So many, and those of a step, are where prompts wait for the next step: of each the target's taps
# are kept till then.
MANY = 2048
# More rows than `FEW` are read as a multiple of `MULTIPLE`: on a CPU, the first matrix product of
# a number of rows takes several times as long as those that follow.
FEW, MULTIPLE = 32, 16


class Unread:
    """For a head that is `rowwise`. What is added is read before any tree is grown; what is missed
    never is."""

    def __init__(self) -> None:
        self.count = 0
        self.missed = Missed()
        self._steps = 0
        # Of R rows: tokens, positions, slots, `[3, R] int64`; taps, `[R, taps * H_t]`.
        self._numbers = torch.zeros(3, 0, dtype=torch.int64)
        self._taps = torch.zeros(0, 0)

    def add(self, rows: DraftRows, taps: Sequence[torch.Tensor]) -> int:
        """A step's rows, with the target's `taps: [N, H_t]` each; returns where they begin."""
        self.missed.read(rows.slots)
        first, self.count = self.count, self.count + len(rows.tokens)
        self._steps += 1
        self._make_room(taps)
        new = slice(first, self.count)
        torch.stack((rows.tokens, rows.positions, rows.slots), out=self._numbers[:, new])
        if rows.hidden_rows is not index_range(len(taps[0]), taps[0].device):
            taps = [tap[rows.hidden_rows] for tap in taps]
        torch.cat(tuple(taps), dim=1, out=self._taps[new])
        return first

    def read(self, head: Head) -> torch.Tensor:
        """Have all of them read; `[at least count, H]`: see `Head.read`."""
        count, rows = self.count, self.count
        if count > FEW:
            rows = -(-count // MULTIPLE) * MULTIPLE
        tokens, positions, slots = self._numbers[:, :rows]
        slots[count:] = -1
        if self._steps > 1:
            # A slot may have become another request's since: its last row counts.
            _, last = np.unique(slots[:count].numpy()[::-1], return_index=True)
            kept = torch.full_like(slots, -1)
            kept[count - 1 - last] = slots[count - 1 - last]
            slots = kept
        self.count = self._steps = 0
        return head.read(tokens, positions, slots, self._taps[:rows])

    def miss(self, slots: np.ndarray, page_size: int) -> None:
        """A step's rows in `slots: [n]` will not be read, nor those that still were to be: whose
        they are, there is no tree in sight for them."""
        if self.count:
            unread = self._numbers[2, : self.count].numpy()
            slots = np.append(unread[unread >= 0], slots)
            self.count = self._steps = 0
        self.missed.add(slots, page_size)

    def _make_room(self, taps: Sequence[torch.Tensor]) -> None:
        if self.count <= len(self._taps):
            return
        # A power of 2, so there is room for a multiple, too.
        most = max(1 << (self.count - 1).bit_length(), 2 * ENOUGH)
        numbers, kept = self._numbers, self._taps
        self._numbers = numbers.new_zeros(3, most)
        self._taps = taps[0].new_zeros(most, sum(tap.shape[1] for tap in taps))
        self._numbers[:, : numbers.shape[1]] = numbers
        if len(kept):
            self._taps[: len(kept)] = kept
