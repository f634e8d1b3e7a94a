# SPDX-License-Identifier: Apache-2.0
"""tree_prune and tally_paths in Triton; all in float64, nothing waits for the device.

Nothing is passed from row to row through memory: a row multiplies along its own path, from the root
on, as the definition does, and its place is the count of those before it. So no chance is above its
parent's, and ties cannot fall differently. What no program can know of all trees, the least chance
that is kept, torch's sort finds between two launches.
"""

import torch
import triton
import triton.language as tl

from vllm_eagle_pangu.kernels.tree_build.reference import Trees
from vllm_eagle_pangu.kernels.tree_prune import reference
from vllm_eagle_pangu.kernels.tree_prune.reference import Belief
from vllm_eagle_pangu.kernels.triton_runtime import launch

# Elements of a tile [rows, rows of the same tree]: 32 registers of 4 bytes a thread at 4 warps.
TILE = 2048
# What verified nodes of a tree teach: how many there are, three sums of errors, six of information.
SUMS = tl.constexpr(10)

LEAST = tl.constexpr(reference.LEAST)
MOST = tl.constexpr(reference.MOST)
PRIOR = tl.constexpr(reference.PRIOR)
STEP = tl.constexpr(reference.STEP)


@triton.jit
def _number(value: tl.constexpr):
    """As float64: a bare number would be rounded to float32."""
    return tl.full([1], value, tl.float64)


@triton.jit
def _features(score, parent, valid, rows, ROWS: tl.constexpr, OTHERS: tl.constexpr):
    """Of a tree's nodes, `[ROWS] float64`: the log-odds that the head gave them after their
    parents, and 1 for the likeliest of their parents' children, of equal ones the lower row."""
    row = tl.arange(0, ROWS)
    inside = row < rows
    node = (tl.load(valid + row, mask=inside, other=0) != 0) & (row > 0)
    own = tl.load(score + row, mask=node, other=0.0)
    above = tl.load(parent + row, mask=node, other=0)
    said = (own - tl.load(score + above, mask=node, other=0.0)).to(tl.float64)
    said = tl.where(said < _number(LEAST), _number(LEAST), said)
    said = tl.where(said > _number(MOST), _number(MOST), said)
    # 1 - exp(x) by Kahan, exact near 0: what was rounded off of exp(x) is made up for.
    chance = tl.exp(said)
    odds = said - tl.log((1.0 - chance) * (said / tl.log(chance)))
    before = tl.zeros([ROWS], tl.int32)
    for start in range(0, rows, OTHERS):
        other = start + tl.arange(0, OTHERS)
        there = (other > 0) & (other < rows)
        there = there & (tl.load(valid + other, mask=there, other=0) != 0)
        theirs = tl.load(score + other, mask=there, other=0.0)[:, None]
        beside = tl.load(parent + other, mask=there, other=-1)[:, None] == above[None, :]
        better = theirs > own[None, :]
        tied = (theirs == own[None, :]) & (other[:, None] < row[None, :])
        before += tl.sum(((better | tied) & beside & there[:, None]).to(tl.int32), axis=0)
    return node, odds, (before == 0).to(tl.float64)


@triton.jit
def _accepted(odds, first, line):
    """The chance of a node after its parent, by `line`'s three numbers."""
    by = tl.load(line) + tl.load(line + 1) * odds + tl.load(line + 2) * first
    return 1.0 / (1.0 + tl.exp(-by))


@triton.jit(do_not_specialize=["rows"])
def _chances_kernel(
    parent,  # [B, R] int64
    depth,  # [B, R] int64
    valid,  # [B, R] int8
    visible,  # [B, R, R] int8
    score,  # [B, R] float32
    kind,  # [B] int64
    lines,  # [K, 3] float64
    chance,  # [B, R] float64, written
    rows,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    request = tl.program_id(0).to(tl.int64)
    parent += request * rows
    valid += request * rows
    score += request * rows
    column = tl.arange(0, ROWS)
    node, odds, first = _features(score, parent, valid, rows, ROWS, BLOCK)
    edge = _accepted(odds, first, lines + 3 * tl.load(kind + request))
    level = tl.load(depth + request * rows + column, mask=node, other=0)

    row = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = row < rows
    seen = visible + (request * rows + row)[:, None] * rows + column[None, :]
    above = tl.load(seen, mask=inside[:, None] & node[None, :], other=0) != 0
    found = tl.full([BLOCK], 1.0, tl.float64)
    for each in range(1, tl.max(level) + 1):
        # One node of a row's path, or none.
        here = above & (level == each)[None, :]
        factor = tl.sum(tl.where(here, edge[None, :], 0.0), axis=1)
        found = tl.where(tl.sum(here.to(tl.int32), axis=1) > 0, factor * found, found)
    real = tl.load(valid + row, mask=inside, other=0) != 0
    tl.store(chance + request * rows + row, tl.where(real, found, 0.0), mask=inside)


@triton.jit
def _key(chance, least, row, inside):
    """By which rows fall: the chance of those kept, -1 of others, less outside."""
    found = tl.load(chance + row, mask=inside, other=-2.0)
    kept = (found >= tl.load(least)) | (row == 0)
    return tl.where(kept | ~inside, found, -1.0)


@triton.jit
def _place(chance, least, row, inside, rows, OTHERS: tl.constexpr):
    """How many rows come before each `row`; equals in the order of rows."""
    own = _key(chance, least, row, inside)
    place = tl.zeros_like(row)
    for start in range(0, rows, OTHERS):
        other = (start + tl.arange(0, OTHERS)).to(row.dtype)
        there = other < rows
        theirs = _key(chance, least, other, there)[:, None]
        tied = (theirs == own[None, :]) & (other[:, None] < row[None, :])
        earlier = (theirs > own[None, :]) | tied
        place += tl.sum((earlier & there[:, None]).to(tl.int32), axis=0)
    return place


@triton.jit(do_not_specialize=["rows"])
def _keep_kernel(
    tokens,  # [B, R] int64
    parent,  # [B, R] int64
    depth,  # [B, R] int64
    visible,  # [B, R, R] int8
    score,  # [B, R] float32
    chance,  # [B, R] float64
    least,  # [1] float64
    kept_tokens,  # as the above, written; so are the following
    kept_parent,
    kept_depth,
    kept_valid,
    kept_visible,
    kept_score,
    rows,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    request = tl.program_id(0).to(tl.int64)
    chance += request * rows
    row = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = row < rows
    at = request * rows + row
    kept = inside & (_key(chance, least, row, inside) > 0)
    above = tl.load(parent + at, mask=kept, other=0).to(tl.int32)
    place = _place(chance, least, row, inside, rows, BLOCK)
    to = request * rows + place
    tl.store(kept_tokens + to, tl.load(tokens + at, mask=kept, other=0), mask=inside)
    # The root's place is 0, as is its own parent and padding's.
    parent_place = _place(chance, least, above, inside, rows, BLOCK)
    tl.store(kept_parent + to, parent_place.to(tl.int64), mask=inside)
    tl.store(kept_depth + to, tl.load(depth + at, mask=kept, other=0), mask=inside)
    tl.store(kept_valid + to, kept.to(tl.int8), mask=inside)
    own = tl.load(score + at, mask=kept, other=float("-inf"))
    tl.store(kept_score + to, own, mask=inside)

    column = tl.arange(0, ROWS)
    among = column < rows
    column_place = _place(chance, least, column, among, rows, BLOCK)
    seen = visible + at[:, None] * rows + column[None, :]
    sees = tl.load(seen, mask=kept[:, None] & among[None, :], other=0)
    sees = tl.where((column == 0)[None, :], 1, sees).to(tl.int8)
    seen = kept_visible + to[:, None] * rows + column_place[None, :]
    tl.store(seen, sees, mask=inside[:, None] & among[None, :])


def tree_prune(
    trees: Trees, kind: torch.Tensor, belief: Belief, cost: torch.Tensor
) -> tuple[Trees, torch.Tensor]:
    """See `reference.tree_prune`; two launches, and torch's sort between them."""
    batch, rows = trees.tokens.shape
    kept = Trees.empty(batch, rows, trees.tokens.device)
    chance = cost.new_empty((batch, rows))
    sizes = _sizes(rows)
    grid = (batch, triton.cdiv(rows, sizes["BLOCK"]))
    judged = trees.parent, trees.depth, trees.valid, trees.visible, trees.score
    launch(_chances_kernel, grid, *judged, kind, belief.line, chance, rows, **sizes, num_warps=4)
    copied = trees.tokens, trees.parent, trees.depth, trees.visible, trees.score
    found = chance, _least_kept(chance, cost), *vars(kept).values()
    launch(_keep_kernel, grid, *copied, *found, rows, **sizes, num_warps=4)
    return kept, chance


def _sizes(rows: int) -> dict[str, int]:
    padded = triton.next_power_of_2(rows)
    return {"ROWS": padded, "BLOCK": max(1, min(padded, TILE // padded))}


def _least_kept(chance: torch.Tensor, cost: torch.Tensor) -> torch.Tensor:
    """`[1]`: the chance of the last node to keep; infinite where none is."""
    falling = chance[:, 1:].flatten().sort(descending=True).values
    brought = falling.cumsum(0) - cost[1 : len(falling) + 1]
    # No chance, no node.
    brought = torch.cat([-cost[:1], brought.masked_fill(falling <= 0, -torch.inf)])
    best = brought.argmax(0, keepdim=True)
    return torch.cat([falling.new_full((1,), torch.inf), falling])[best]


@triton.jit(do_not_specialize=["rows", "columns"])
def _tally_kernel(
    parent,  # [B, R] int64
    valid,  # [B, R] int8
    score,  # [B, R] float32
    kind,  # [B] int64
    path,  # [B, columns] int64
    length,  # [B] int64
    lines,  # [K, 3] float64
    sums,  # [B, SUMS] float64, written
    rows,
    columns,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    request = tl.program_id(0).to(tl.int64)
    parent += request * rows
    path += request * columns
    row = tl.arange(0, ROWS)
    valid += request * rows
    node, odds, first = _features(score + request * rows, parent, valid, rows, ROWS, BLOCK)
    above = tl.load(parent + row, mask=node, other=-1)
    on_path = row < 0
    tried = row < 0
    for step in range(tl.load(length + request).to(tl.int32) + 1):
        here = tl.load(path + step)
        on_path = on_path | (row == here)
        tried = tried | (above == here)
    chance = _accepted(odds, first, lines + 3 * tl.load(kind + request))
    error = tl.where(tried, on_path.to(tl.float64) - chance, 0.0)
    weight = tl.where(tried, chance * (1.0 - chance), 0.0)
    sums += request * SUMS
    tl.store(sums, tl.sum(tried.to(tl.float64)))
    tl.store(sums + 1, tl.sum(error))
    tl.store(sums + 2, tl.sum(error * odds))
    tl.store(sums + 3, tl.sum(error * first))
    tl.store(sums + 4, tl.sum(weight))
    tl.store(sums + 5, tl.sum(weight * odds))
    tl.store(sums + 6, tl.sum(weight * first))
    tl.store(sums + 7, tl.sum(weight * odds * odds))
    tl.store(sums + 8, tl.sum(weight * odds * first))
    # `first` is its own square.
    tl.store(sums + 9, tl.sum(weight * first))


@triton.jit
def _sum_of(sums, at, mine):
    return tl.sum(tl.load(sums + at, mask=mine, other=0.0))


@triton.jit
def _within_step(step):
    return tl.minimum(tl.maximum(step, -STEP), STEP)


@triton.jit(do_not_specialize=["batch"])
def _learn_kernel(
    sums,  # [B, SUMS] float64
    kind,  # [B] int64
    lines,  # [K, 3] float64, written; so is the following
    information,  # [K, 3, 3] float64
    batch,
    MEMORY: tl.constexpr,
    BATCH: tl.constexpr,
):
    which = tl.program_id(0).to(tl.int64)
    lines += which * 3
    information += which * 9
    request = tl.arange(0, BATCH)
    inside = request < batch
    mine = inside & (tl.load(kind + request, mask=inside, other=-1) == which)
    sums += request * SUMS
    left = tl.sum(tl.exp(_sum_of(sums, 0, mine) * tl.log(_number(MEMORY))))
    wrong_0 = _sum_of(sums, 1, mine)
    wrong_1 = _sum_of(sums, 2, mine)
    wrong_2 = _sum_of(sums, 3, mine)
    known_00 = tl.load(information) * left + _sum_of(sums, 4, mine)
    known_01 = tl.load(information + 1) * left + _sum_of(sums, 5, mine)
    known_02 = tl.load(information + 2) * left + _sum_of(sums, 6, mine)
    known_11 = tl.load(information + 4) * left + _sum_of(sums, 7, mine)
    known_12 = tl.load(information + 5) * left + _sum_of(sums, 8, mine)
    known_22 = tl.load(information + 8) * left + _sum_of(sums, 9, mine)
    tl.store(information, known_00)
    tl.store(information + 1, known_01)
    tl.store(information + 2, known_02)
    tl.store(information + 3, known_01)
    tl.store(information + 4, known_11)
    tl.store(information + 5, known_12)
    tl.store(information + 6, known_02)
    tl.store(information + 7, known_12)
    tl.store(information + 8, known_22)

    # Symmetric and positive definite: eliminated in order, 0, 2 and 1 last.
    square_00 = known_00 + PRIOR
    square_11 = known_11 + PRIOR
    square_22 = known_22 + PRIOR
    times_2 = known_02 / square_00
    rest_22 = square_22 - times_2 * known_02
    rest_21 = known_12 - times_2 * known_01
    rest_2 = wrong_2 - times_2 * wrong_0
    times_1 = known_01 / square_00
    rest_11 = square_11 - times_1 * known_01 - rest_21 / rest_22 * rest_21
    step_1 = (wrong_1 - times_1 * wrong_0 - rest_21 / rest_22 * rest_2) / rest_11
    # A node that the head thinks likelier is not believed to be less likely.
    slope = tl.load(lines + 1)
    step_1 = tl.where(step_1 < -slope, -slope, step_1)
    step_2 = (rest_2 - rest_21 * step_1) / rest_22
    step_0 = (wrong_0 - known_01 * step_1 - known_02 * step_2) / square_00
    tl.store(lines, tl.load(lines) + _within_step(step_0))
    tl.store(lines + 1, slope + _within_step(step_1))
    tl.store(lines + 2, tl.load(lines + 2) + _within_step(step_2))


def tally_paths(
    trees: Trees,
    kind: torch.Tensor,
    rows: torch.Tensor,
    length: torch.Tensor,
    belief: Belief,
    memory: float,
) -> None:
    """See `reference.tally_paths`; two launches. Compiled for each `memory`."""
    batch, of_tree = trees.tokens.shape
    given = trees.parent, trees.valid, trees.score, kind, rows, length, belief.line
    sums = belief.line.new_empty((batch, SUMS.value))
    sizes = of_tree, rows.shape[1]
    launch(_tally_kernel, (batch,), *given, sums, *sizes, **_sizes(of_tree), num_warps=4)
    launch(
        _learn_kernel,
        (len(belief.line),),
        *(sums, kind, belief.line, belief.information, batch),
        MEMORY=memory,
        BATCH=triton.next_power_of_2(batch),
        num_warps=1,
    )
