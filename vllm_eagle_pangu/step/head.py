# SPDX-License-Identifier: Apache-2.0
"""What the step needs of an EAGLE-3 head, which runs on its platform's layers and pages."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from vllm_eagle_pangu.step.extend import Extension
    from vllm_eagle_pangu.step.rows import TreeRows

# [n, H] each: for the logits, and for the next pass.
States = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class TargetStates:
    """What the target's forward leaves to the head.

    `taps: [N, H_t]` each: auxiliary hidden states. `attention`: the platform's metadata of the
    batch, for `Head.extend`.
    """

    taps: Sequence[torch.Tensor]
    attention: object


@dataclass(frozen=True)
class Limits:
    """What user and head allow: trees up to W wide and D deep, requests up to `max_len` tokens.

    `window`: how many committed keys it attends; None for all of them.
    """

    width: int
    depth: int
    max_len: int
    window: int | None

    @property
    def scratch_rows(self) -> int:
        """Rows of K/V that a request's tree takes in each of the head's layers."""
        return self.width * self.depth

    def reaches(self, tokens: int) -> bool:
        """Whether a request of so many tokens may be drafted for, after this step's, too."""
        return tokens + 2 * (self.depth + 1) <= self.max_len

    def prefix_start(
        self, prefix_len: torch.Tensor, read_from: torch.Tensor | None = None
    ) -> torch.Tensor | None:
        """`[T] int32`: the first committed key that the head attends; None for the first.

        `read_from: [T] int32`: the first one that it may.
        """
        if self.window is None:
            return read_from
        start = (prefix_len - self.window).clamp(min=0).int()
        return start if read_from is None else start.maximum(read_from)


class Head(Protocol):
    """The head of one engine."""

    @property
    def group(self) -> int:
        """The KV cache group of its layers."""
        ...

    @property
    def page_size(self) -> int:
        """Slots of a page of its layers."""
        ...

    @property
    def rowwise(self) -> bool:
        """Whether the K/V of a row needs no other row, as in a head of one layer.

        Committed rows are then `read`, and `level` runs over those that trees grow from.
        """
        ...

    @property
    def parallel(self) -> bool:
        """Whether it was trained to draft all levels at once, from `masked` rows."""
        ...

    def masked(self, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """`[rows] int64` and `[rows, H]`: tokens and hidden for `level` in place of those that
        nobody has drafted yet. If `parallel`."""
        ...

    def read(
        self,
        tokens: torch.Tensor,  # [n] int64
        positions: torch.Tensor,  # [n] int64
        slots: torch.Tensor,  # [n] int64, -1 for nowhere
        taps: torch.Tensor,  # [n, taps * H_t]: the target's states
    ) -> torch.Tensor:
        """Write the rows' K/V to their slots; `[n, H]`, as hidden for `level`. If `rowwise`."""
        ...

    def extend(self, extension: "Extension", taps: torch.Tensor, attention: object) -> States:
        """Run over the rows of `extension`, writing their K/V to its slots; their `taps` as in
        `read`."""
        ...

    def level(
        self,
        tokens: torch.Tensor,  # [n] int64
        positions: torch.Tensor,  # [n] int64
        hidden: torch.Tensor,  # [n, H], overwritten
        rows: "TreeRows",
    ) -> States:
        """Run over rows behind their prefixes, such as a level of trees, whose K/V is not for the
        pages."""
        ...

    def children(self, states: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities and target ids of the best `width` tokens after each of the rows."""
        ...
