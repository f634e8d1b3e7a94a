# SPDX-License-Identifier: Apache-2.0
"""Definition of draft_batch: what the drafter reads after a target forward."""

from dataclasses import dataclass

import torch

from vllm_eagle_pangu.kernels.tree_accept.reference import AcceptedPaths


@dataclass
class DraftRows:
    """N' drafter rows of B requests; tensors int64.

    `tokens: [N']`.
    `positions: [N']`: rotary positions, linear.
    `hidden_rows: [N']`: row of the target batch whose hidden state a row takes.
    `slots: [N']`: page slot, -1 for padded rows.
    `query_start: [B+1]`: first row of each request, then N'.
    `sample_rows: [B]`: the row whose output predicts the root's children.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    hidden_rows: torch.Tensor
    slots: torch.Tensor
    query_start: torch.Tensor
    sample_rows: torch.Tensor

    @classmethod
    def empty(cls, batch: int, rows: int, device: torch.device) -> "DraftRows":
        """Room for `rows` rows: slices of one uninitialised tensor."""
        block = torch.empty(4 * rows + 2 * batch + 1, dtype=torch.int64, device=device)
        return cls(*block.split_with_sizes((rows, rows, rows, rows, batch + 1, batch)))


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
) -> DraftRows:
    """Pair each accepted token with the target's hidden state one position before it.

    A request with a tree takes D+1 rows whatever it accepted: L accepted tokens and the bonus,
    with the hidden states of the rows they were drawn at, then padding. Any other request takes
    its own rows with the tokens shifted left by one.

    `input_ids: [N]` int32 or int64, `positions` (linear), `linear_slots: [N] int64`: the target
    batch; `query_start: [B+1]` int32 or int64; `is_tree: [B] bool`; `paths`: rows relative to each
    request's first row, ignored where `is_tree` is false; `next_tokens: [B] int64`: the token
    after the last row, ignored where `is_tree` is true; `depth`: D; `rows`: N', which the host
    knows and only a device would have to be asked for.
    """
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
    assert drafted.tokens.shape[0] == rows, (drafted.tokens.shape, rows)
    return drafted
