# SPDX-License-Identifier: Apache-2.0
"""Accepted tokens to the drafter's next input rows."""

import torch

from vllm_eagle_pangu.kernels.draft_batch.rows import DraftRows, MaskRows
from vllm_eagle_pangu.kernels.implementations import Implementations
from vllm_eagle_pangu.kernels.tree_accept.paths import AcceptedPaths

__all__ = ["DraftRows", "MaskRows", "draft_batch", "prepare"]

_OP = Implementations(__name__, "draft_batch")
prepare = _OP.prepare


def draft_batch(
    input_ids: torch.Tensor,
    positions: torch.Tensor,
    query_start: torch.Tensor,
    is_tree: torch.Tensor,
    paths: AcceptedPaths,
    next_tokens: torch.Tensor,
    linear_slots: torch.Tensor,
    depth: int,
    rows: int,
    mask_rows: MaskRows | None = None,
    implementation: str | None = None,
) -> DraftRows:
    """Pair each accepted token with the target's hidden state one position before it.

    A request with a tree takes D+1 rows whatever it accepted: L accepted tokens and the bonus,
    with the hidden states of the rows they were drawn at, then padding. Any other request takes
    its own rows with the tokens shifted left by one.

    `input_ids: [N]` int32 or int64, `positions` (linear), `linear_slots: [N] int64`: the target
    batch; `query_start: [B+1]` int32 or int64; `is_tree: [B] bool`; `paths`: rows relative to each
    request's first row, ignored where `is_tree` is false; `next_tokens: [B] int64`: the token
    after the last row, ignored where `is_tree` is true; `depth`: D; `rows`: N', which the host
    knows and only a device would have to be asked for; `mask_rows`: a drafter's mask rows behind
    all of these, request by request; `DraftRows` says what they hold and how they attend.

    Raises:
        ValueError: `implementation` names none of the op's; None is the device's own.
    """
    return _OP.of(implementation, input_ids.device)(
        input_ids,
        positions,
        query_start,
        is_tree,
        paths,
        next_tokens,
        linear_slots,
        depth,
        rows,
        mask_rows,
    )
