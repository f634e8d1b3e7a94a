# SPDX-License-Identifier: Apache-2.0
"""Committed rows that a head never read, since no tree was in sight: it does not attend them."""

import numpy as np
import torch

# So many steps' slots are counted at once: behind a forward even little work takes long.
TOGETHER = 64


class Missed:
    """Where the head's pages hold nothing of use, by page, whosever it is: a page may be handed on
    with its tokens. For pages on the host.
    """

    def __init__(self) -> None:
        # Slots of a page, always the same.
        self.page_size = 1
        # `[pages so far]`: of each, how many of its first slots are not to be attended.
        self._first = np.zeros(0, np.int32)
        # Slots of the last steps, which do not count in it yet.
        self._new: list[np.ndarray] = []
        self._any = False

    @property
    def any(self) -> bool:
        """Whether anything was missed that may be attended."""
        return self._any or bool(self._new)

    def add(self, slots: np.ndarray, page_size: int) -> None:
        """Rows in `slots: [n]` are not read, those of a request one behind the other."""
        self.page_size = page_size
        self._new.append(slots.copy())
        if len(self._new) == TOGETHER:
            self._count()

    def read(self, slots: torch.Tensor) -> None:
        """Rows in `slots: [n]`, -1 for none, are read: a page that is begun anew is whole."""
        self._count()
        if not self._any:
            return
        page, offset = np.divmod(slots.numpy(), self.page_size)
        begun = page[(offset == 0) & (page < len(self._first))]
        self._first[begun] = 0
        self._any = bool(self._first.any())

    def _count(self) -> None:
        """Let the last steps' slots count, of each page the last one."""
        if not self._new:
            return
        page, offset = np.divmod(np.concatenate(self._new), self.page_size)
        self._new.clear()
        if page.max() >= len(self._first):
            self._first = np.append(self._first, np.zeros(2 * page.max() + 1, np.int32))
        self._first[page] = offset + 1
        self._any = True

    def starts(self, block_table: torch.Tensor, prefix_len: torch.Tensor) -> torch.Tensor:
        """`[k] int32`: from which position on all of a prefix was read, `prefix_len: [k]` long, its
        pages `block_table: [k, P]`."""
        self._count()
        length = prefix_len.numpy()
        place = np.arange(-(-int(length.max(initial=0)) // self.page_size))
        page = block_table[:, : len(place)].numpy()
        known = (page < len(self._first)) & (place * self.page_size < length[:, None])
        missed = self._first[np.where(known, page, 0)] * known
        ends = (place * self.page_size + missed) * (missed > 0)
        return torch.from_numpy(np.minimum(ends.max(axis=1, initial=0), length).astype(np.int32))
