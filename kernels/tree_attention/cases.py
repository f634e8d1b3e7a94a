# SPDX-License-Identifier: Apache-2.0
"""Inputs of tree_attention, for tests and benchmarks."""

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch

from vllm_eagle_pangu.kernels.npu_runtime import DTYPES
from vllm_eagle_pangu.kernels.tree_attention.pages import PagedKV, pages_of
from vllm_eagle_pangu.kernels.tree_attention.rows import AttentionRows


@dataclass(frozen=True)
class AttentionCase:
    """T tree requests; one entry per request in `prefixes`, `queries` and `keys`.

    `scratch`: 0 when the dense keys are the query rows themselves (the target's verify pass), else
    the dense rows set aside per request (the drafter's level passes).
    `starts`: the first attended paged key of each request; None: no windows are given.
    `gap`: rows before, between and after the requests that belong to none of them.
    `room`: a request's pages have slots for its dense keys, too, behind its prefix.
    `transposed_keys`: pages as vLLM's CPU backend packs them; `amx_tiles`: as it packs bfloat16 for
    AMX, in blocks of a multiple of 32; `heads_in_slots`: as its GPU backends do by default
    ([2, blocks, block_size, Hk, K]); none of them: heads outside of slots.
    """

    name: str
    prefixes: tuple[int, ...]
    queries: tuple[int, ...]
    keys: tuple[int, ...]
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 32
    block_size: int = 16
    scratch: int = 0
    starts: tuple[int, ...] | None = None
    gap: int = 0
    room: bool = False
    transposed_keys: bool = True
    heads_in_slots: bool = False
    amx_tiles: bool = False
    dtype: torch.dtype = torch.float32


def verify_case(
    name: str, prefixes: tuple[int, ...], rows: tuple[int, ...], **other: Any
) -> AttentionCase:
    """A target forward over `rows[t]` tree rows behind `prefixes[t]` keys."""
    return AttentionCase(name, prefixes, rows, rows, **other)


def level_case(
    name: str, prefixes: tuple[int, ...], width: int, level: int, depth: int, **other: Any
) -> AttentionCase:
    """The drafter's pass at `level` (1 for the root's children): W queries, level*W keys."""
    trees = len(prefixes)
    return AttentionCase(
        name,
        prefixes,
        (width,) * trees,
        (level * width,) * trees,
        scratch=depth * width,
        **other,
    )


CASES = (
    verify_case("one_row_no_prefix", (0,), (1,), heads=1, kv_heads=1),
    verify_case("empty_prefix", (0, 0), (7, 3)),
    verify_case("prefix_ends_on_a_page", (32, 16), (5, 5)),
    verify_case("prefix_one_past_a_page", (33, 1), (5, 5)),
    verify_case("ragged", (100, 0, 7, 63), (17, 1, 9, 13), gap=3),
    verify_case("no_groups", (21,), (13,), heads=3, kv_heads=3),
    verify_case("one_kv_head", (21, 40), (13, 13), heads=8, kv_heads=1),
    verify_case("row_major_keys", (50, 3), (9, 12), transposed_keys=False),
    verify_case("odd_head_size", (19, 30), (6, 6), head_size=20),
    verify_case("long_prefix", (1000, 777), (33, 61), block_size=128, head_size=64),
    verify_case("wide_heads", (63, 129), (13, 13), block_size=128, head_size=128, heads=2),
    verify_case("no_requests", (), ()),
    level_case("level_first", (40, 0, 9), width=4, level=1, depth=4),
    level_case("level_last", (40, 0, 9), width=4, level=4, depth=4, gap=2),
    level_case("level_chain", (129,), width=1, level=2, depth=3, block_size=128),
    verify_case("bfloat16", (65, 17, 0), (9, 13, 5), dtype=torch.bfloat16, head_size=64),
    verify_case("float16", (65, 17, 0), (9, 13, 5), dtype=torch.float16, head_size=64),
    level_case("bfloat16_level", (300, 5), 4, 3, 5, dtype=torch.bfloat16, block_size=128),
    verify_case("window_from_0", (50, 0), (9, 3), starts=(0, 0)),
    verify_case("window_of_no_key", (50, 32, 0), (5, 5, 5), starts=(50, 32, 0)),
    verify_case("window_from_inside_a_page", (50, 40), (9, 5), starts=(21, 7)),
    verify_case("window_from_a_page_edge", (50, 48), (9, 5), starts=(32, 16)),
    verify_case("window_of_one_key", (50, 33, 32), (5, 5, 5), starts=(49, 32, 31)),
    verify_case("windows_ragged", (100, 0, 7, 163), (17, 1, 9, 13), starts=(64, 0, 6, 1), gap=3),
    level_case("window_level", (129, 0, 70), 4, 3, 4, starts=(100, 0, 13), gap=2),
    verify_case(
        "window_row_major", (140, 90), (9, 4), starts=(75, 1), transposed_keys=False, head_size=20
    ),
    verify_case(
        "window_bfloat16", (300, 65), (9, 13), starts=(150, 17), dtype=torch.bfloat16, head_size=64
    ),
)

# Pages as vllm-ascend lays them out, with room for a tree behind them, within the limits of all of
# Ascend's implementations.
NPU_SHAPE: dict[str, Any] = {
    "head_size": 128,
    "block_size": 128,
    "transposed_keys": False,
    "heads_in_slots": True,
    "room": True,
}
# No fused operator of Ascend's takes a window beside a tree's mask.
NPU_CASES = tuple(
    replace(case, **NPU_SHAPE, dtype=case.dtype if case.dtype in DTYPES else torch.bfloat16)
    for case in CASES
    if case.starts is None
)


def make_inputs(case: AttentionCase, seed: int = 0, device: str = "cpu") -> dict[str, Any]:
    """Keyword arguments of `tree_attention` but for `implementation`.

    Whatever must not be read is NaN: rows of no request, padding rows' K/V, unused pages, slots
    before a window and past the prefix. Pages before a window are the unused one. `output` is NaN
    throughout.
    """
    generator = torch.Generator().manual_seed(seed)
    trees, stride = len(case.prefixes), case.scratch

    sizes = (count + case.gap for count in case.queries)
    *query_start, query_rows = accumulate(sizes, initial=case.gap)
    key_start = [t * stride for t in range(trees)] if stride else query_start
    key_rows = trees * stride if stride else query_rows

    visible = torch.zeros(trees, max(case.queries, default=0), max(case.keys, default=0)).bool()
    for t, (queries, keys) in enumerate(zip(case.queries, case.keys, strict=True)):
        mask = _level_mask if stride else _tree_mask
        visible[t, :queries, :keys] = mask(queries, keys, generator)

    query = _poisoned(query_rows, case.heads, case)
    key, value = (_poisoned(key_rows, case.kv_heads, case) for _ in range(2))
    for t, queries in enumerate(case.queries):
        rows = slice(query_start[t], query_start[t] + queries)
        query[rows] = torch.randn(query[rows].shape, generator=generator).to(case.dtype)
        seen = key_start[t] + visible[t].any(dim=0).nonzero()[:, 0]
        for tensor in (key, value):
            drawn = torch.randn(tensor[seen].shape, generator=generator)
            tensor[seen] = drawn.to(case.dtype)

    pages, block_table = _pages(case, generator)
    # Strides stay as they are.
    there = PagedKV(pages.key.to(device), pages.value.to(device))
    numbers = {
        **({} if case.starts is None else {"prefix_start": case.starts}),
        "prefix_len": case.prefixes,
        "query_start": query_start,
        "query_count": case.queries,
        "key_start": key_start,
        "key_count": case.keys,
    }
    return {
        "query": query.to(device),
        "key": key.to(device),
        "value": value.to(device),
        "pages": _in_amx_tiles(pages) if case.amx_tiles else there,
        "rows": AttentionRows(
            block_table=block_table.to(device),
            visible=visible.to(device),
            **{k: torch.tensor(v, dtype=torch.int32, device=device) for k, v in numbers.items()},
        ),
        "scale": case.head_size**-0.5,
        "output": torch.full_like(query, torch.nan, device=device),
    }


def _poisoned(rows: int, heads: int, case: AttentionCase) -> torch.Tensor:
    return torch.full((rows, heads, case.head_size), torch.nan, dtype=case.dtype)


def _tree_mask(rows: int, keys: int, generator: torch.Generator) -> torch.Tensor:
    """A random tree; about one in eight of its last rows are padding, which see the root alone."""
    assert rows == keys
    sees = torch.eye(rows, dtype=torch.bool)
    nodes = rows - rows // 8
    for row in range(1, rows):
        if row < nodes:
            parent = int(torch.randint(row, (), generator=generator))
            sees[row] |= sees[parent]
        else:
            sees[row] = False
            sees[row, 0] = True
    return sees


def _level_mask(width: int, keys: int, generator: torch.Generator) -> torch.Tensor:
    """Each row sees itself and one row of each level above; some rows above are seen by none."""
    sees = torch.zeros(width, keys, dtype=torch.bool)
    for level in range(0, keys - width, width):
        ancestor = torch.randint(width, (width,), generator=generator)
        sees[torch.arange(width), level + ancestor] = True
    sees[:, keys - width :] = torch.eye(width, dtype=torch.bool)
    return sees


def _pages(case: AttentionCase, generator: torch.Generator) -> tuple[PagedKV, torch.Tensor]:
    """Pages in shuffled order, one of them used by nobody."""
    size = case.block_size
    starts = case.starts or (0,) * len(case.prefixes)
    pairs = zip(case.prefixes, case.keys, strict=True)
    lengths = [prefix + case.room * keys for prefix, keys in pairs]
    ends = [-(-length // size) for length in lengths]
    used = [
        range(end)[pages_of(start, length, size)]
        for start, length, end in zip(starts, lengths, ends, strict=True)
    ]
    blocks = sum(map(len, used)) + 1
    shape = (blocks, case.kv_heads, size, case.head_size)
    key, value = (torch.full(shape, torch.nan, dtype=case.dtype) for _ in range(2))
    if case.transposed_keys:
        key = key.mT.contiguous().mT
    if case.heads_in_slots:
        key, value = torch.stack((key, value)).transpose(2, 3).contiguous().transpose(2, 3)
    # Entries past a request's pages point nowhere.
    block_table = torch.full((len(used), max(ends, default=0) + 1), -1, dtype=torch.int32)
    order = torch.randperm(blocks, generator=generator).tolist()
    for t, indices in enumerate(used):
        block_table[t, : ends[t]] = order[0]
        for index in indices:
            block = order.pop()
            block_table[t, index] = block
            first = max(0, starts[t] - index * size)
            end = max(0, min(size, case.prefixes[t] - index * size))
            for pages in (key, value):
                drawn = torch.randn(pages[block, :, first:end].shape, generator=generator)
                pages[block, :, first:end] = drawn.to(case.dtype)
    return PagedKV(key, value), block_table


def _in_amx_tiles(pages: PagedKV) -> PagedKV:
    """A copy, on the CPU, element by element by the formulas of `PagedKV.of_amx_tiles`."""
    blocks, heads, size, width = pages.shape
    cache = torch.full((blocks, heads, size, 2 * width), torch.nan, dtype=pages.key.dtype)
    s, d = torch.arange(size)[:, None], torch.arange(width)[None]
    memory = cache.view(blocks, heads, -1)
    memory[..., (s // 16) * 16 * width + (d // 2) * 32 + (s % 16) * 2 + d % 2] = pages.key
    value_at = (d // 16) * 16 * size + (s // 2) * 32 + (d % 16) * 2 + s % 2
    memory[..., size * width + value_at] = pages.value
    return PagedKV.of_amx_tiles(cache)
