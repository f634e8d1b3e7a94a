# SPDX-License-Identifier: Apache-2.0
"""The invariants of the commit: an accepted row's K/V goes to its place behind the root."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from vllm_eagle_pangu.kernels.kv_commit.reference import ONCE
from vllm_eagle_pangu.tracing.dumped import DumpedCache, DumpedRequest, Finding

ROOT = "cache: the root is the token at position t"
LINEAR = "cache: linear slots are those of the positions from t on"
ACCEPTED = "commit: the i-th accepted row takes the slot of position t + i"
REJECTED = "commit: every other row has slot -1"
BLOCKS = "commit: slots lie in the request's own blocks"


def check_cache(request: DumpedRequest) -> Iterator[Finding]:
    """Every invariant of the request's commit that breaks."""
    yield from _check_root(request)
    for cache in request.caches:
        yield from _check_linear(request, cache)
        yield from _check_commit(request, cache)
        yield from _check_blocks(request, cache)


def check_written_once(requests: Sequence[DumpedRequest]) -> Iterator[Finding]:
    """Of the whole batch: no slot of a group is committed to twice."""
    places: dict[tuple[int, int], list[tuple[DumpedRequest, int]]] = defaultdict(list)
    for request in requests:
        for cache in request.caches:
            for row, slot in _written(cache):
                places[cache.group, slot].append((request, row))
    for (group, slot), writers in places.items():
        if len(writers) > 1:
            by = ", ".join(f"row {row} of {request.request}" for request, row in writers)
            detail = f"slot {slot} of group {group} is written by {by}"
            yield writers[0][0].finding(ONCE, [row for _, row in writers], detail)


def _check_root(request: DumpedRequest) -> Iterator[Finding]:
    tokens, t, tree = request.token_ids, request.prefix_len, request.tree
    if tokens is None or t is None or tree is None:
        return
    if t >= len(tokens):
        detail = f"t is {t}, but prompt and output have {len(tokens)} tokens"
        yield request.finding(ROOT, [0], detail)
    elif tokens[t] != tree.tokens[0, 0]:
        detail = f"the root is token {tree.tokens[0, 0]}, position {t} has token {tokens[t]}"
        yield request.finding(ROOT, [0], detail)


def _check_linear(request: DumpedRequest, cache: DumpedCache) -> Iterator[Finding]:
    """Only as many rows as were scheduled have positions; what lies behind is of other requests."""
    slots, ids, size = cache.linear_slots, cache.block_ids, cache.block_size
    t, count = request.prefix_len, request.count
    if slots is None or ids is None or size is None or t is None or count is None:
        return
    expected = [
        ids[position // size] * size + position % size if position // size < len(ids) else None
        for position in range(t, t + min(count, len(slots)))
    ]
    broken = [i for i, slot in enumerate(expected) if slots[i] != slot]
    if broken:
        i = broken[0]
        detail = f"position {t + i} has slot {slots[i]}, the block table says {expected[i]}"
        yield request.finding(LINEAR, broken, f"group {cache.group}: {detail}")


def _check_commit(request: DumpedRequest, cache: DumpedCache) -> Iterator[Finding]:
    slots, linear, path = cache.commit_slots, cache.linear_slots, request.accepted
    if slots is None or path is None:
        return
    accepted = path[1:]
    if linear is not None:
        for place, row in enumerate(accepted, start=1):
            given = slots[row] if 0 <= row < len(slots) else None
            wanted = linear[place] if place < len(linear) else None
            if given != wanted:
                detail = f"row {row} is number {place} of the path and has slot {given}"
                detail += f", the slot of position t + {place} is {wanted}"
                yield request.finding(ACCEPTED, [row], f"group {cache.group}: {detail}")
                break
    strays = [row for row, _ in _written(cache) if row not in accepted]
    if strays:
        detail = f"row {strays[0]} is not on the path and has slot {slots[strays[0]]}"
        yield request.finding(REJECTED, strays, f"group {cache.group}: {detail}")


def _check_blocks(request: DumpedRequest, cache: DumpedCache) -> Iterator[Finding]:
    ids, size = cache.block_ids, cache.block_size
    if ids is None or size is None:
        return
    outside = [(row, slot) for row, slot in _written(cache) if slot // size not in ids]
    if outside:
        row, slot = outside[0]
        detail = f"slot {slot} of row {row} lies in block {slot // size}, not in {ids}"
        rows = [row for row, _ in outside]
        yield request.finding(BLOCKS, rows, f"group {cache.group}: {detail}")


def _written(cache: DumpedCache) -> list[tuple[int, int]]:
    """(row, slot) of what is committed."""
    return [(row, slot) for row, slot in enumerate(cache.commit_slots or ()) if slot != -1]
