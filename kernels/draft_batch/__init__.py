# SPDX-License-Identifier: Apache-2.0
"""Accepted tokens to the drafter's next input rows."""

from collections.abc import Callable

import torch

from vllm_eagle_pangu.core.paths import AcceptedPaths
from vllm_eagle_pangu.kernels.draft_batch.cpu_impl import compile_entry, cpu_draft_batch
from vllm_eagle_pangu.kernels.draft_batch.reference import draft_batch as draft_batch_reference
from vllm_eagle_pangu.kernels.draft_batch.rows import DraftRows

__all__ = ["IMPLEMENTATIONS", "DraftRows", "draft_batch", "prepare"]

IMPLEMENTATIONS = ("reference", "cpp")


def draft_batch(
    input_ids: torch.Tensor,
    positions: torch.Tensor,
    query_start: torch.Tensor,
    is_tree: torch.Tensor,
    paths: AcceptedPaths,
    next_tokens: torch.Tensor,
    linear_slots: torch.Tensor,
    depth: int,
    implementation: str = "reference",
) -> DraftRows:
    """Pair each accepted token with the target's hidden state one position before it.

    A request with a tree takes D+1 rows whatever it accepted: L accepted tokens and the bonus,
    with the hidden states of the rows they were drawn at, then padding. Any other request takes
    its own rows with the tokens shifted left by one. Syncs with the device for N'.

    `input_ids: [N]` int32 or int64, `positions` (linear), `linear_slots: [N] int64`: the target
    batch; `query_start: [B+1]` int32 or int64; `is_tree: [B] bool`; `paths`: rows relative to each
    request's first row, ignored where `is_tree` is false; `next_tokens: [B] int64`: the token
    after the last row, ignored where `is_tree` is true; `depth`: D.

    Raises:
        ValueError: `implementation` is not one of `IMPLEMENTATIONS`.
    """
    return _implementation(implementation)(
        input_ids, positions, query_start, is_tree, paths, next_tokens, linear_slots, depth
    )


def prepare(implementation: str) -> None:
    """Make an implementation ready to run, compiling it where needed: at start-up, not mid-request.

    Raises:
        ValueError: `implementation` is not one of `IMPLEMENTATIONS`.
        RuntimeError: it cannot run on this machine; the message says why and what to do.
    """
    if _implementation(implementation) is cpu_draft_batch:
        compile_entry()


def _implementation(name: str) -> Callable[..., DraftRows]:
    if name == "reference":
        return draft_batch_reference
    if name == "cpp":
        return cpu_draft_batch
    raise ValueError(
        f"draft_batch: implementation={name!r} is unknown; use one of "
        + ", ".join(map(repr, IMPLEMENTATIONS))
    )
