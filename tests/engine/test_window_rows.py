# SPDX-License-Identifier: Apache-2.0
"""`TreeRows.within`: which keys the rows of a tree see in a layer with a sliding window."""

import pytest
import torch

from vllm_eagle_pangu.kernels.indices import causal
from vllm_eagle_pangu.step.rows import ChainRows, LevelRows

WIDTH, DEPTH = 2, 4
PREFIXES = [0, 1, 5, 40]
WINDOWS = [1, 2, 3, 6, 100]


def int32(values):
    return torch.tensor(values, dtype=torch.int32)


def chain_rows(prefix_start=None):
    """D+1 rows of each request, dense keys where its rows are."""
    count = DEPTH + 1
    start = int32([t * count for t in range(len(PREFIXES))])
    return ChainRows(
        block_table=torch.arange(len(PREFIXES) * 2, dtype=torch.int32).view(-1, 2),
        prefix_len=int32(PREFIXES),
        query_start=start,
        query_count=torch.full_like(start, count),
        key_start=start,
        key_count=torch.full_like(start, count),
        visible=causal(count, start.device).expand(len(PREFIXES), -1, -1),
        covers_batch=True,
        prefix_start=prefix_start,
    )


def level_rows(level):
    """W rows of each request, each a child of the row of its own index in the level above."""
    start = int32([t * WIDTH for t in range(len(PREFIXES))])
    own_branch = torch.eye(WIDTH, dtype=torch.bool).repeat(1, level + 1)
    scratch = WIDTH * DEPTH
    return LevelRows(
        block_table=torch.arange(len(PREFIXES) * 2, dtype=torch.int32).view(-1, 2),
        prefix_len=int32(PREFIXES),
        query_start=start,
        query_count=torch.full_like(start, WIDTH),
        key_start=int32([t * scratch for t in range(len(PREFIXES))]),
        key_count=torch.full_like(start, (level + 1) * WIDTH),
        visible=own_branch.expand(len(PREFIXES), -1, -1),
        covers_batch=True,
        level=level,
        width=WIDTH,
        scratch_rows=scratch,
    )


def seen(rows):
    """By query row: its block table, the prefix positions it sees, and the dense keys it sees."""
    found = {}
    for t, (first, count) in enumerate(zip(rows.query_start, rows.query_count, strict=True)):
        start = 0 if rows.prefix_start is None else int(rows.prefix_start[t])
        for i in range(int(count)):
            dense = rows.visible[t, i, : int(rows.key_count[t])].nonzero()[:, 0]
            found[int(first) + i] = (
                rows.block_table[t].tolist(),
                list(range(start, int(rows.prefix_len[t]))),
                (int(rows.key_start[t]) + dense).tolist(),
            )
    return found


@pytest.mark.parametrize("window", WINDOWS)
def test_rows_of_a_chain_see_themselves_and_what_lies_window_minus_one_before(window):
    rows = chain_rows()
    expected = {}
    for t, prefix in enumerate(PREFIXES):
        first = t * (DEPTH + 1)
        for i in range(DEPTH + 1):
            keys = range(max(0, prefix + i - window + 1), prefix + i + 1)
            expected[first + i] = (
                [2 * t, 2 * t + 1],
                [key for key in keys if key < prefix],
                [first + key - prefix for key in keys if key >= prefix],
            )
    assert seen(rows.within(window)) == expected


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("level", range(DEPTH))
def test_rows_of_a_level_see_the_ancestors_within_the_window(level, window):
    rows = level_rows(level)
    expected = {}
    for t, prefix in enumerate(PREFIXES):
        for i in range(WIDTH):
            keys = range(max(0, prefix + level - window + 1), prefix + level + 1)
            expected[t * WIDTH + i] = (
                [2 * t, 2 * t + 1],
                [key for key in keys if key < prefix],
                [t * WIDTH * DEPTH + (key - prefix) * WIDTH + i for key in keys if key >= prefix],
            )
    assert seen(rows.within(window)) == expected


def test_a_prefix_that_starts_later_stays_so():
    rows = chain_rows(prefix_start=int32([0, 0, 3, 38]))
    starts = rows.within(6).prefix_start.view(len(PREFIXES), -1)[:, 0].tolist()
    assert starts == [0, 0, 3, 38]
    assert rows.within(2).prefix_start.view(len(PREFIXES), -1)[2].tolist() == [4, 5, 5, 5, 5]


@pytest.mark.parametrize("rows", [chain_rows(), *(level_rows(level) for level in range(DEPTH))])
def test_the_operator_takes_windowed_rows_and_gives_their_attention(rows):
    from vllm_eagle_pangu.kernels.tree_attention import PagedKV, tree_attention

    generator = torch.Generator().manual_seed(0)
    pages = PagedKV(*(torch.randn(8, 1, 32, 32, generator=generator) for _ in range(2)))
    key, value = (torch.randn(64, 1, 32, generator=generator) for _ in range(2))
    query = torch.randn(20, 2, 32, generator=generator)
    narrow = rows.within(3)
    outputs = []
    for implementation in ("reference", "cpp"):
        output = torch.zeros_like(query)
        tree_attention(
            query, key, value, pages, narrow, 32**-0.5, output, implementation, check=True
        )
        outputs.append(output)
    torch.testing.assert_close(*outputs)
