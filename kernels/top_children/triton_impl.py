# SPDX-License-Identifier: Apache-2.0
"""top_children in Triton: one program per row, one pass over it, nothing kept in memory.

Lane l of a program sees the logits l, l + LANES, ...: it keeps its best one and the sum of its
exponentials. The best of all lanes is the row's; whose lane it was looks up its next best among its
own few logits, and so on W times. So a row is read once, whatever W.
"""

import torch
import triton
import triton.language as tl

# Of the largest rows: 16 a thread at 8 warps; of a tensor of as many, 192 KB of Ascend hold twelve.
LANES = 4096
# To which float32 holds every index.
MOST_TOKENS = 1 << 24
# The least float32. Lanes that have seen nothing are measured from it: -inf - -inf is NaN.
LEAST = tl.constexpr(-3.4028234663852886e38)

_TYPES = (torch.float32, torch.bfloat16, torch.float16)


@triton.jit
def _load_logits(logits, at, inside):
    """As float32; NaN counts as -inf."""
    x = tl.load(logits + at, mask=inside, other=float("-inf")).to(tl.float32)
    # A comparison with NaN is false.
    return tl.where(x > float("-inf"), x, float("-inf"))


@triton.jit
def _best_of_lanes(logits, vocab, LANES: tl.constexpr):
    """Per lane: the best logit, its index as float32, and the sum of exp(logit - best)."""
    lane = tl.arange(0, LANES)
    best = tl.full([LANES], float("-inf"), tl.float32)
    index = tl.minimum(lane, vocab)
    total = tl.zeros([LANES], tl.float32)
    for start in tl.range(0, vocab, LANES, num_stages=3):
        at = start + lane
        x = _load_logits(logits, at, at < vocab)
        gap = x - tl.maximum(best, LEAST)
        # The smaller one is scaled: the sum so far by a new best, any other by the best.
        weight = tl.exp(-tl.abs(gap))
        total = tl.where(gap > 0, total * weight + 1.0, total + weight)
        index = tl.where(x > best, at, index)
        best = tl.maximum(best, x)
    # triton-ascend takes an integer that a loop carries to a load for an offset, and refuses it.
    return best, index.to(tl.float32), total


@triton.jit
def _next_of_lane(logits, vocab, value, index, LANES: tl.constexpr, TURNS: tl.constexpr):
    """The best logit of `index`'s lane after it and its index; `vocab` where none is left."""
    at = index % LANES + tl.arange(0, TURNS) * LANES
    inside = at < vocab
    x = _load_logits(logits, at, inside)
    after = inside & ((x < value) | ((x == value) & (at > index)))
    next_value = tl.max(tl.where(after, x, float("-inf")))
    next_index = tl.min(tl.where(after & (x == next_value), at, vocab))
    return next_value, next_index


@triton.jit(do_not_specialize=["width"])
def _top_children_kernel(
    logits,  # [N, Vd], rows row_stride apart
    target_ids,  # [Vd] int64 where MAPPED
    scores,  # [N, W] float32, written
    tokens,  # [N, W] int64, written
    vocab,
    row_stride,
    width,
    MAPPED: tl.constexpr,
    LANES: tl.constexpr,
    TURNS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    logits += row * row_stride
    scores += row * width
    tokens += row * width
    best, index, total = _best_of_lanes(logits, vocab, LANES)
    top = tl.max(best)
    # NaN where the best logit is infinite, which is not used.
    log_sum = tl.log(tl.sum(total * tl.exp(tl.maximum(best, LEAST) - top)))
    finite = (top > float("-inf")) & (top < float("inf"))
    for k in range(width):
        value = tl.max(best)
        # A lane's index is its lowest of that value, so this is the row's.
        chosen = tl.min(tl.where(best == value, index, vocab)).to(tl.int32)
        tl.store(scores + k, tl.where(finite, value - top - log_sum, float("-inf")))
        if MAPPED:
            tl.store(tokens + k, tl.load(target_ids + chosen))
        else:
            tl.store(tokens + k, chosen.to(tl.int64))
        next_value, next_index = _next_of_lane(logits, vocab, value, chosen, LANES, TURNS)
        taken = index == chosen
        best = tl.where(taken, next_value, best)
        index = tl.where(taken, next_index.to(tl.float32), index)


def top_children(
    logits: torch.Tensor, width: int, target_ids: torch.Tensor | None, lanes: int = LANES
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `reference.top_children`; one launch, nothing waits for the device.

    The elements of a row of `logits` must be adjacent. `lanes`: a power of two, for tests.
    """
    rows, vocab = logits.shape
    assert 1 <= width <= vocab <= MOST_TOKENS, (width, vocab)
    assert logits.stride(1) == 1 or vocab == 1, "the logits of a row must be adjacent"
    assert logits.dtype in _TYPES, f"top_children takes {list(_TYPES)}, not {logits.dtype}"
    if target_ids is not None:
        assert target_ids.dtype == torch.int64 and target_ids.shape == (vocab,)
    scores = torch.empty((rows, width), dtype=torch.float32, device=logits.device)
    tokens = torch.empty((rows, width), dtype=torch.int64, device=logits.device)
    lanes = min(lanes, triton.next_power_of_2(vocab))
    if rows:
        _top_children_kernel[(rows,)](
            logits,
            tokens if target_ids is None else target_ids.contiguous(),
            scores,
            tokens,
            vocab,
            logits.stride(0),
            width,
            MAPPED=target_ids is not None,
            LANES=lanes,
            TURNS=triton.next_power_of_2(triton.cdiv(vocab, lanes)),
            num_warps=_warps(lanes),
        )
    return scores, tokens


def _warps(lanes: int) -> int:
    return max(1, min(8, lanes // 512))
