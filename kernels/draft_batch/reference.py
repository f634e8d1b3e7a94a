# SPDX-License-Identifier: Apache-2.0
"""Definition of draft_batch: what the drafter reads after a target forward."""

import torch

from vllm_eagle_pangu.core.paths import AcceptedPaths
from vllm_eagle_pangu.kernels.draft_batch.rows import DraftRows


def draft_batch(
    input_ids: torch.Tensor,
    positions: torch.Tensor,
    query_start: torch.Tensor,
    is_tree: torch.Tensor,
    paths: AcceptedPaths,
    next_tokens: torch.Tensor,
    linear_slots: torch.Tensor,
    depth: int,
    rows: int | None = None,
) -> DraftRows:
    """As the face of the package."""
    starts = query_start.to(torch.int64)
    first, count = starts[:-1], starts.diff()
    draft_count = count.masked_fill(is_tree, depth + 1)
    draft_starts = torch.cat((starts[:1] * 0, draft_count.cumsum(0)))
    request = torch.repeat_interleave(draft_count)
    index = torch.arange(request.shape[0], device=request.device) - draft_starts[request]

    on_tree, last = is_tree[request], (count - 1)[request]
    # A tree cut by the scheduler may have fewer target rows than D+1: padding repeats the last.
    linear_row = first[request] + index.minimum(last)
    path_index = index.clamp(max=depth)
    padded = on_tree & (path_index > paths.length[request])

    shifted = input_ids[(linear_row + 1).clamp(max=input_ids.shape[0] - 1)]
    chain_token = shifted.where(index < last, next_tokens[request])
    tree_token = paths.output[request, path_index]
    drafted = DraftRows(
        tokens=tree_token.where(on_tree, chain_token).masked_fill(padded, 0),
        positions=positions[linear_row],
        hidden_rows=(first[request] + paths.rows[request, path_index]).where(on_tree, linear_row),
        slots=linear_slots[linear_row].masked_fill(padded, -1),
        query_start=draft_starts,
        sample_rows=draft_starts[:-1] + paths.length.where(is_tree, count - 1),
    )
    return drafted if rows is None else drafted.padded(rows)
