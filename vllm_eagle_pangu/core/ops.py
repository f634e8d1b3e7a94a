# SPDX-License-Identifier: Apache-2.0
"""The tensor ops of a step, each bound to the implementation that an engine chose at its start."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from vllm_eagle_pangu.kernels import tree_attention
from vllm_eagle_pangu.kernels.draft_batch import DraftRows, draft_batch
from vllm_eagle_pangu.kernels.implementations import Op
from vllm_eagle_pangu.kernels.kv_commit import commit_pages, commit_slots
from vllm_eagle_pangu.kernels.top_children import top_children
from vllm_eagle_pangu.kernels.tree_accept import AcceptedPaths, tree_accept
from vllm_eagle_pangu.kernels.tree_build import Trees, tree_build
from vllm_eagle_pangu.kernels.tree_expand import Frontier, tree_expand
from vllm_eagle_pangu.kernels.tree_prune import tally_paths, tree_prune

# All but `tree_attention`, whose implementation may be another one.
_OPS: tuple[Op[..., Any], ...] = (
    *(draft_batch, top_children, tree_expand, tree_build, tree_prune, tally_paths),
    *(tree_accept, commit_slots, commit_pages),
)


@dataclass(frozen=True)
class Ops:
    """`kernels.*` without their argument `implementation`: see each op's own folder.

    `implementation` and `attention` name what was chosen, the latter for `tree_attention`.
    """

    implementation: str
    attention: str
    draft_batch: Callable[..., DraftRows]
    top_children: Callable[..., tuple[torch.Tensor, torch.Tensor]]
    tree_expand: Callable[..., Frontier]
    tree_build: Callable[..., Trees]
    tree_prune: Callable[..., tuple[Trees, torch.Tensor]]
    tally_paths: Callable[..., None]
    tree_attention: Callable[..., None]
    tree_accept: Callable[..., AcceptedPaths]
    commit_slots: Callable[..., torch.Tensor]
    commit_pages: Callable[..., None]

    @classmethod
    def bind(cls, implementation: str, attention: str | None = None, check: bool = False) -> "Ops":
        """All ops of one implementation, `tree_attention` of another where `attention` says so.

        `check`: see `tree_attention`.
        """
        attention = attention or implementation
        attend = partial(tree_attention.tree_attention, implementation=attention, check=check)
        others = {op.name: partial(op, implementation=implementation) for op in _OPS}
        return cls(implementation, attention, tree_attention=attend, **others)

    def prepare(self, dtype: torch.dtype) -> None:
        """Compile at start-up what the step will call; `dtype`: of queries, keys and values.

        Raises:
            ValueError: an op has no such implementation.
            RuntimeError: it cannot run on this machine; the message says why and what to do.
        """
        tree_attention.prepare(self.attention, dtype)
        for op in _OPS:
            op.prepare(self.implementation)
