# SPDX-License-Identifier: Apache-2.0
"""tree_expand in Triton: one launch, one program per request.

Nothing is sorted and nothing is passed through memory: a child's rank is the count of those better
than it, and a frontier row finds its child by comparing with all ranks. So ties cannot fall
differently.
"""

import torch
import triton
import triton.language as tl

from vllm_eagle_pangu.kernels.tree_expand.frontier import Candidates, Frontier, level_slice
from vllm_eagle_pangu.kernels.triton_runtime import launch

# Elements of a tile [children, children]: 64 registers a thread at 4 warps.
TILE = 8192


@triton.jit
def _child_score(scores, above_score, child, inside, width, ROOT: tl.constexpr):
    """Cumulative scores of one request's children: at most their parents', NaN counts as -inf."""
    score = tl.load(scores + child, mask=inside, other=float("-inf"))
    # A comparison with NaN is false.
    score = tl.where(score > float("-inf"), score, float("-inf"))
    score = tl.where(score > 0.0, 0.0, score)
    if ROOT:
        return score
    return score + tl.load(above_score + child // width, mask=inside, other=0.0)


@triton.jit
def _best_children(
    scores,
    above_score,
    score,  # [CHILDREN]
    children,
    width,
    CHILDREN: tl.constexpr,
    WIDTH: tl.constexpr,
    OTHERS: tl.constexpr,
):
    """`[WIDTH]`: the children of rank 0, 1, ...; equals in index order."""
    child = tl.arange(0, CHILDREN)
    rank = tl.zeros_like(child)
    for start in range(0, children, OTHERS):
        other = start + tl.arange(0, OTHERS)
        inside = other < children
        other_score = _child_score(scores, above_score, other, inside, width, False)
        better = other_score[:, None] > score[None, :]
        tied = (other_score[:, None] == score[None, :]) & (other[:, None] < child[None, :])
        rank += tl.sum(((better | tied) & inside[:, None]).to(tl.int32), axis=0)
    # What pads the children ranks behind them all.
    here = rank[None, :] == tl.arange(0, WIDTH)[:, None]
    return tl.sum(tl.where(here, child[None, :], 0), axis=1)


@triton.jit(do_not_specialize=["children", "width", "level", "capacity", "first"])
def _tree_expand_kernel(
    scores,  # [B, W, W] float32, below the root [B, W]
    tokens,  # likewise, int64
    above_score,  # [B, W] float32; not read below the root, like the next two
    above_candidate,  # [B, W] int64
    above_visible,  # [B, W, (level-1)*W] int8
    candidate_tokens,  # [B, C] int64, written; so are the following
    candidate_scores,  # [B, C] float32
    candidate_parents,  # [B, C] int64
    out_tokens,  # [B, W] int64
    out_score,  # [B, W] float32
    out_parent,  # [B, W] int64
    out_visible,  # [B, W, level*W] int8
    out_candidate,  # [B, W] int64
    children,
    width,
    level,
    capacity,
    first,
    ROOT: tl.constexpr,
    CHILDREN: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    OTHERS: tl.constexpr,
):
    request = tl.program_id(0).to(tl.int64)
    scores += request * children
    tokens += request * children
    above_score += request * width
    child = tl.arange(0, CHILDREN)
    inside = child < children
    score = _child_score(scores, above_score, child, inside, width, ROOT)
    at = request * capacity + first + child
    tl.store(candidate_tokens + at, tl.load(tokens + child, mask=inside, other=0), mask=inside)
    tl.store(candidate_scores + at, score, mask=inside)
    row = tl.arange(0, WIDTH)
    in_row = row < width
    if ROOT:
        tl.store(candidate_parents + at, tl.zeros([CHILDREN], tl.int64), mask=inside)
        chosen = row
        parent = tl.zeros([WIDTH], tl.int32)
    else:
        family = above_candidate + request * width + child // width
        tl.store(candidate_parents + at, tl.load(family, mask=inside, other=0), mask=inside)
        chosen = _best_children(
            scores, above_score, score, children, width, CHILDREN, WIDTH, OTHERS
        )
        parent = chosen // width

    to = request * width + row
    tl.store(out_tokens + to, tl.load(tokens + chosen, mask=in_row, other=0), mask=in_row)
    kept = _child_score(scores, above_score, chosen, in_row, width, ROOT)
    tl.store(out_score + to, kept, mask=in_row)
    tl.store(out_parent + to, parent.to(tl.int64), mask=in_row)
    tl.store(out_candidate + to, (chosen + first + 1).to(tl.int64), mask=in_row)

    # A node sees what its parent sees, and its own row of the scratch.
    column = tl.arange(0, COLUMNS)[None, :]
    inherited = (level - 1) * width
    sees = (column == inherited + row[:, None]).to(tl.int8)
    if not ROOT:
        seen = above_visible + (request * width + parent)[:, None] * inherited + column
        sees += tl.load(seen, mask=in_row[:, None] & (column < inherited), other=0)
    seen = out_visible + to[:, None] * (level * width) + column
    tl.store(seen, sees, mask=in_row[:, None] & (column < level * width))


def tree_expand(
    candidates: Candidates,
    above: Frontier | None,
    scores: torch.Tensor,
    tokens: torch.Tensor,
) -> Frontier:
    """See `reference.tree_expand`; nothing waits for the device."""
    batch, width = tokens.shape[0], tokens.shape[-1]
    level = 1 if above is None else above.level + 1
    size = (batch, width)
    children = width if above is None else width * width
    assert scores.shape == tokens.shape == (size if above is None else (*size, width))
    kept = level_slice(width, level)
    assert kept.stop <= candidates.tokens.shape[1], (level, candidates.tokens.shape)
    frontier = Frontier.empty(batch, width, level, tokens.device)
    # What is not read below the root stands in for what is not there.
    over = frontier if above is None else above
    *written, _ = vars(frontier).values()
    launch(
        _tree_expand_kernel,
        (batch,),
        *(scores.float(), tokens, over.score, over.candidate, over.visible),
        *(*vars(candidates).values(), *written),
        *(children, width, level, candidates.tokens.shape[1], kept.start),
        **_sizes(width, level),
        num_warps=4,
    )
    return frontier


def _sizes(width: int, level: int) -> dict[str, int | bool]:
    """The constexprs of a level."""
    children = triton.next_power_of_2(width if level == 1 else width * width)
    return {
        "ROOT": level == 1,
        "CHILDREN": children,
        "WIDTH": triton.next_power_of_2(width),
        "COLUMNS": triton.next_power_of_2(level * width),
        "OTHERS": max(1, min(children, TILE // children)),
    }
