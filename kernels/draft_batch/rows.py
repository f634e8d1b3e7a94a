# SPDX-License-Identifier: Apache-2.0
"""Input rows of the drafter's extend pass."""

from dataclasses import dataclass

import torch

from vllm_eagle_pangu.kernels.indices import causal


@dataclass(frozen=True)
class MaskRows:
    """Rows behind each request's own that draft in the same pass (P-EAGLE's parallel drafting).

    `count` >= 1 per request, for count + 1 drafted tokens; `token`: the mask token's id. As
    `copy_and_expand_eagle_inputs_kernel` in vllm/v1/spec_decode/utils.py, but for their place.
    """

    count: int
    token: int

    def __post_init__(self) -> None:
        assert self.count >= 1 and self.token >= 0, self


@dataclass
class DraftRows:
    """N' drafter rows of B requests, then mask rows if asked for.

    R rows in all, tensors int64 unless said otherwise.

    `tokens: [R]`.
    `positions: [R]`: rotary positions, linear. Those of mask rows go on behind the sample row's
    and may run past the model's last position: the consumer clamps.
    `hidden_rows: [R]`: row of the target batch whose hidden state a row takes; 0 for mask rows,
    which take the drafter's learned state.
    `slots: [R]`: page slot, -1 for padded rows and for mask rows, whose K/V stay dense.
    `query_start: [B+1]`: first row of each request, then N'.
    `sample_rows: [B]`: the row whose output predicts the root's children.
    `mask_visible: [count, count] bool`: the mask rows that each sees of its request; shared, so
    never written. None without mask rows.

    Row `first_mask + b * count + j` is the j-th mask row of request b: the outputs `[first_mask:]`,
    seen as `[B, count, ..]`, predict what comes j + 1 tokens after what the sample row predicts.
    To `kernels.tree_attention` the mask rows of request b are a tree request of their own:
    `query_start` and `key_start` `first_mask + b * count`, `query_count` and `key_count` count,
    `visible` the expanded `mask_visible`, and `prefix_len` the position of the first of them, as
    this op gives it: up to and with the sample row, whose K/V must be in the pages by then. A
    request without rows has no sample row, and mask rows from position 0.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    hidden_rows: torch.Tensor
    slots: torch.Tensor
    query_start: torch.Tensor
    sample_rows: torch.Tensor
    mask_visible: torch.Tensor | None = None

    @property
    def first_mask(self) -> int:
        """Rows from here on are mask rows; R where there are none."""
        count = 0 if self.mask_visible is None else self.mask_visible.shape[0]
        return self.tokens.shape[0] - self.sample_rows.shape[0] * count

    @classmethod
    def empty(
        cls, batch: int, rows: int, mask_rows: MaskRows | None, device: torch.device
    ) -> "DraftRows":
        """Room for `rows` rows and the mask rows: slices of one uninitialised tensor."""
        every = rows + (0 if mask_rows is None else batch * mask_rows.count)
        block = torch.empty(4 * every + 2 * batch + 1, dtype=torch.int64, device=device)
        sizes = (every, every, every, every, batch + 1, batch)
        drafted = cls(*block.split_with_sizes(sizes))
        if mask_rows is not None:
            drafted.mask_visible = causal(mask_rows.count, device)
        return drafted
