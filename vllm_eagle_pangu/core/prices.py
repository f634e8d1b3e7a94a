# SPDX-License-Identifier: Apache-2.0
"""What the time of a step's parts is worth, in tokens."""

from dataclasses import dataclass, field

import numpy as np
import torch

from vllm_eagle_pangu.core.costs import StepCosts

# A forward of more rows than `FEW` has a multiple of `MULTIPLE`: few numbers, as on a CPU the first
# matrix product of a number of rows takes several times as long as later ones.
FEW, MULTIPLE = 16, 8


@dataclass
class Prices:
    """In tokens what is worth the time of a `level`, and `[nodes + 1] float64` of a forward by its
    `nodes`. `few`: whether forwards are to have few numbers of rows."""

    level: float = 0.0
    nodes: np.ndarray = field(default_factory=lambda: np.zeros(1))
    few: bool = False
    _by_batch: dict[int, torch.Tensor] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        costs: StepCosts,
        batch: int,
        width: int,
        most: int,
        worth: float,
        few: bool,
    ) -> "Prices":
        """Of `batch` trees so wide with up to `most` nodes in all; a second is `worth` so many
        tokens."""
        nodes = worth * costs.of_forward(batch, np.arange(most + 1))
        level = worth * costs.of_level(batch * width)
        return cls(level, nodes, few)

    def by_nodes(self, batch: int) -> torch.Tensor:
        """`nodes`; infinite where a forward of so many requests would have a number of rows that
        none is to have."""
        if batch not in self._by_batch:
            rows = batch + np.arange(len(self.nodes))
            odd = ~np.isin(rows, row_counts(rows[-1])) & self.few
            odd[[0, -1]] = False
            self._by_batch[batch] = torch.from_numpy(np.where(odd, np.inf, self.nodes))
        return self._by_batch[batch]


def row_counts(most: int) -> list[int]:
    """Numbers of rows, up to `most`, that a host's forwards with trees have."""
    return [*range(1, min(FEW, most) + 1), *range(FEW + MULTIPLE, most + 1, MULTIPLE)]
