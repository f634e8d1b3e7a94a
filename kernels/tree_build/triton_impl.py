# SPDX-License-Identifier: Apache-2.0
"""tree_build in Triton: one launch; a program fills a few rows of one request's tree.

Nothing is sorted and nothing is passed through memory: a candidate's rank is the count of those
better than it, its row the count of those kept before it, and a row finds its candidate and
its ancestors by comparing with all candidates. So ties cannot fall differently, and no
program waits for another.
"""

import torch
import triton
import triton.language as tl

from vllm_eagle_pangu.kernels.tree_build.reference import Trees, check_sizes
from vllm_eagle_pangu.kernels.triton_runtime import launch

# Elements of a tile [rows, candidates]: 64 registers a thread at 4 warps.
TILE = 8192


@triton.jit
def _score_below(scores, parents, index, inside, depth):
    """Scores lowered to the least on their way to the root; NaN counts as -inf."""
    score = tl.load(scores + index, mask=inside, other=float("-inf"))
    # A comparison with NaN is false.
    score = tl.where(score > float("-inf"), score, float("-inf"))
    above = tl.load(parents + index, mask=inside, other=0)
    for _ in range(depth - 1):
        is_node = above > 0
        at = tl.where(is_node, above - 1, 0)
        other = tl.load(scores + at, mask=is_node, other=float("inf"))
        other = tl.where(other > float("-inf"), other, float("-inf"))
        score = tl.minimum(score, other)
        above = tl.load(parents + at, mask=is_node, other=0)
    return score


@triton.jit
def _rank(scores, parents, score, index, capacity, depth, BLOCK: tl.constexpr):
    """How many candidates come before each in the order of scores; equals in index order."""
    rank = tl.zeros_like(index)
    for start in range(0, capacity, BLOCK):
        other = start + tl.arange(0, BLOCK)
        inside = other < capacity
        other_score = _score_below(scores, parents, other, inside, depth)
        better = other_score[:, None] > score[None, :]
        tied = (other_score[:, None] == score[None, :]) & (other[:, None] < index[None, :])
        rank += tl.sum(((better | tied) & inside[:, None]).to(tl.int32), axis=0)
    return rank


@triton.jit
def _row_of(position, kept, index):
    """Row of the candidates at `position` (0 the root, else 1 + candidate): kept ones up to it."""
    earlier = kept[None, :] & (index[None, :] < position[:, None])
    return tl.sum(earlier.to(tl.int32), axis=1)


@triton.jit(do_not_specialize=["capacity", "width", "depth", "nodes"])
def _tree_build_kernel(
    root_tokens,  # [B] int64
    candidate_tokens,  # [B, C] int64
    scores,  # [B, C] float32
    parents,  # [B, C] int64
    tokens,  # [B, R] int64, written; so are the following
    parent,  # [B, R] int64
    depths,  # [B, R] int64
    valid,  # [B, R] int8
    visible,  # [B, R, R] int8
    score_out,  # [B, R] float32
    capacity,
    width,
    depth,
    nodes,
    CANDIDATES: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    OTHERS: tl.constexpr,
):
    request = tl.program_id(0).to(tl.int64)
    rows = nodes + 1
    candidate_tokens += request * capacity
    scores += request * capacity
    parents += request * capacity
    index = tl.arange(0, CANDIDATES)
    inside = index < capacity
    score = _score_below(scores, parents, index, inside, depth)
    rank = _rank(scores, parents, score, index, capacity, depth, OTHERS)
    kept = inside & (rank < nodes) & (score > float("-inf"))
    # Candidate order is topological, so it is the order of rows.
    row_of = tl.where(kept, tl.cumsum(kept.to(tl.int32), 0), 0)
    count = tl.sum(kept.to(tl.int32))

    row = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    in_rows = row < rows
    is_node = (row > 0) & (row <= count)
    # 0 for the root and for padding, else 1 + candidate.
    position = tl.sum(tl.where(row_of[None, :] == row[:, None], index[None, :] + 1, 0), axis=1)
    position = tl.where(is_node, position, 0)
    at = tl.where(is_node, position - 1, 0)
    above = tl.load(parents + at, mask=is_node, other=0).to(tl.int32)
    out = request * rows + row
    root = tl.load(root_tokens + request)
    token = tl.load(candidate_tokens + at, mask=is_node, other=0)
    tl.store(tokens + out, tl.where(row == 0, root, token), mask=in_rows)
    parent_row = tl.where(is_node, _row_of(above, kept, index), 0)
    tl.store(parent + out, parent_row.to(tl.int64), mask=in_rows)
    level = tl.where(at < width, 1, 2 + (at - width) // (width * width))
    tl.store(depths + out, tl.where(is_node, level, 0).to(tl.int64), mask=in_rows)
    tl.store(valid + out, (row <= count).to(tl.int8), mask=in_rows)
    kept_score = _score_below(scores, parents, at, is_node, depth)
    kept_score = tl.where(is_node, kept_score, float("-inf"))
    tl.store(score_out + out, tl.where(row == 0, 0.0, kept_score), mask=in_rows)

    # A row sees itself, its ancestors and the root; padding sees the root alone.
    column = tl.arange(0, COLUMNS)[None, :]
    sees = (column == tl.where(is_node, row, 0)[:, None]) | (column == parent_row[:, None])
    for _ in range(depth - 2):
        at = tl.where(above > 0, above - 1, 0)
        above = tl.load(parents + at, mask=above > 0, other=0).to(tl.int32)
        sees = sees | (column == _row_of(above, kept, index)[:, None])
    sees = sees | (column == 0)
    seen = visible + out[:, None] * rows + column
    tl.store(seen, sees.to(tl.int8), mask=in_rows[:, None] & (column < rows))


def tree_build(
    root_tokens: torch.Tensor,
    tokens: torch.Tensor,
    scores: torch.Tensor,
    parents: torch.Tensor,
    width: int,
    depth: int,
    nodes: int,
) -> Trees:
    """See `reference.tree_build`; nothing waits for the device."""
    batch, capacity = tokens.shape
    check_sizes(capacity, width, depth, nodes)
    rows = nodes + 1
    trees = Trees.empty(batch, rows, tokens.device)
    candidates = triton.next_power_of_2(capacity)
    block = max(1, min(16, TILE // candidates, triton.next_power_of_2(rows)))
    launch(
        _tree_build_kernel,
        (batch, triton.cdiv(rows, block)),
        *(root_tokens, tokens, scores, parents, *vars(trees).values()),
        *(capacity, width, depth, nodes),
        CANDIDATES=candidates,
        COLUMNS=triton.next_power_of_2(rows),
        BLOCK=block,
        OTHERS=max(1, TILE // candidates),
        num_warps=4,
    )
    return trees
