# SPDX-License-Identifier: Apache-2.0
"""tree_accept in Triton: one program per request, its tree in registers."""

import torch
import triton
import triton.language as tl

from vllm_eagle_pangu.kernels.tree_accept.reference import AcceptedPaths
from vllm_eagle_pangu.kernels.triton_runtime import launch


@triton.jit(do_not_specialize=["rows", "depth"])
def _tree_accept_kernel(
    tokens,  # [B, R] int64
    parent,  # [B, R] int64
    valid,  # [B, R] int8
    draws,  # [B, R] int64
    path,  # [B, D+1] int64, written
    length,  # [B] int64, written
    output,  # [B, D+1] int64, written
    rows,
    depth,
    ROWS: tl.constexpr,
):
    request = tl.program_id(0).to(tl.int64)
    row = tl.arange(0, ROWS)
    inside = row < rows
    at = request * rows + row
    token = tl.load(tokens + at, mask=inside, other=0)
    above = tl.load(parent + at, mask=inside, other=0)
    draw = tl.load(draws + at, mask=inside, other=-1)
    # The root is its own parent, not its own child.
    node = (tl.load(valid + at, mask=inside, other=0) != 0) & (row > 0)

    path += request * (depth + 1)
    output += request * (depth + 1)
    here = 0
    accepted = 0
    walking = 1
    for step in range(depth + 1):
        drawn = tl.sum(tl.where(row == here, draw, 0))
        tl.store(path + step, tl.where(walking == 1, here, 0).to(tl.int64))
        tl.store(output + step, tl.where(walking == 1, drawn, -1))
        child = tl.min(tl.where(node & (above == here) & (token == drawn), row, ROWS))
        walking = tl.where((child < ROWS) & (step < depth), walking, 0)
        accepted += walking
        here = tl.where(walking == 1, child, 0)
    tl.store(length + request, accepted)


def tree_accept(
    tokens: torch.Tensor,
    parent: torch.Tensor,
    valid: torch.Tensor,
    draws: torch.Tensor,
    depth: int,
) -> AcceptedPaths:
    """See `reference.tree_accept`; one launch, nothing waits for the device."""
    batch, rows = draws.shape
    assert tokens.shape == draws.shape, (tokens.shape, draws.shape)
    paths = AcceptedPaths.empty(batch, depth, draws.device)
    launch(
        _tree_accept_kernel,
        (batch,),
        *(tokens, parent, valid, draws, *vars(paths).values()),
        rows,
        depth,
        ROWS=triton.next_power_of_2(rows),
        num_warps=1,
    )
    return paths
