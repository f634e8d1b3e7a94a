# SPDX-License-Identifier: Apache-2.0
"""Commit: K/V of the accepted paths, which the target's layers kept aside, to their slots."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from vllm_eagle_pangu.core.ops import Ops
from vllm_eagle_pangu.step.accept import Accepted


class Pages(Protocol):
    """Where the platform keeps the target's committed K/V."""

    def write(self, slots: Mapping[int, torch.Tensor]) -> None:
        """Write the scratch rows of every layer to the slots of its KV cache group.

        `slots`: by group, `[S] int64` of the scheduled rows, -1 for those that are not written.
        """
        ...


@dataclass(frozen=True)
class Committed:
    """By KV cache group, `[T, R] int64`: the slot of each tree row, -1 where none was written."""

    slots: Mapping[int, torch.Tensor]


def commit(accepted: Accepted, pages: Pages, ops: Ops) -> Committed:
    """The only place where committed K/V of the target changes, roots aside."""
    placed, trees = accepted.placed.trees, accepted.trees
    if placed is None or trees is None:
        return Committed({})
    slots = {
        group: ops.commit_slots(trees.paths.rows, placed.slots_by_position(linear))
        for group, linear in accepted.placed.view.slots.items()
    }
    pages.write({group: placed.of_scheduled(of_tree) for group, of_tree in slots.items()})
    return Committed(slots)
