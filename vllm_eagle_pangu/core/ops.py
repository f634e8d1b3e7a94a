# SPDX-License-Identifier: Apache-2.0
"""The tensor ops of a step, each bound to the implementation that an engine chose at its start."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from vllm_eagle_pangu.kernels import (
    draft_batch,
    kv_commit,
    top_children,
    tree_accept,
    tree_attention,
    tree_build,
    tree_expand,
    tree_prune,
)
from vllm_eagle_pangu.kernels.draft_batch import DraftRows
from vllm_eagle_pangu.kernels.tree_accept import AcceptedPaths
from vllm_eagle_pangu.kernels.tree_build import Trees
from vllm_eagle_pangu.kernels.tree_expand import Frontier

_BY_IMPLEMENTATION = (
    draft_batch,
    kv_commit,
    top_children,
    tree_accept,
    tree_build,
    tree_expand,
    tree_prune,
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
        name = implementation
        return cls(
            name,
            attention,
            draft_batch=partial(draft_batch.draft_batch, implementation=name),
            top_children=partial(top_children.top_children, implementation=name),
            tree_expand=partial(tree_expand.tree_expand, implementation=name),
            tree_build=partial(tree_build.tree_build, implementation=name),
            tree_prune=partial(tree_prune.tree_prune, implementation=name),
            tally_paths=partial(tree_prune.tally_paths, implementation=name),
            tree_attention=partial(
                tree_attention.tree_attention, implementation=attention, check=check
            ),
            tree_accept=partial(tree_accept.tree_accept, implementation=name),
            commit_slots=partial(kv_commit.commit_slots, implementation=name),
            commit_pages=partial(kv_commit.commit_pages, implementation=name),
        )

    def prepare(self, dtype: torch.dtype) -> None:
        """Compile at start-up what the step will call; `dtype`: of queries, keys and values.

        Raises:
            ValueError: an op has no such implementation.
            RuntimeError: it cannot run on this machine; the message says why and what to do.
        """
        tree_attention.prepare(self.attention, dtype)
        for op in _BY_IMPLEMENTATION:
            op.prepare(self.implementation)
