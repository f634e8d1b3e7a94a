# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from transformers import DynamicCache

from .cache import FAST_CACHE_REORDER, CommittedCache

LAYERS, HEADS, SIZE, PREFIX, ROWS = 3, 2, 5, 7, 6


def random_rows(batch: int, rows: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [
        (torch.randn(batch, HEADS, rows, SIZE), torch.randn(batch, HEADS, rows, SIZE))
        for _ in range(LAYERS)
    ]


def append(cache: DynamicCache, rows: list[tuple[torch.Tensor, torch.Tensor]]) -> DynamicCache:
    for layer, (key, value) in enumerate(rows):
        cache.update(key, value, layer)
    return cache


@pytest.fixture
def committed(monkeypatch: pytest.MonkeyPatch) -> CommittedCache:
    monkeypatch.delenv(FAST_CACHE_REORDER, raising=False)
    cache = CommittedCache()
    cache.commit_length(append(DynamicCache(), random_rows(1, PREFIX)), row=0, length=PREFIX)
    return cache


def same(left: list, right: list) -> bool:
    return all(
        torch.equal(a, b)
        for x, y in zip(left, right, strict=True)
        for a, b in zip(x, y, strict=True)
    )


def test_branches_are_copies_of_the_committed_rows(committed: CommittedCache):
    before = [(key.clone(), value.clone()) for key, value in committed.layers]
    branch = committed.branch(4)
    for layer, (key, value) in zip(branch.layers, before, strict=True):
        assert torch.equal(layer.keys, key.expand(4, -1, -1, -1))
        assert torch.equal(layer.values, value.expand(4, -1, -1, -1))
        layer.keys.fill_(torch.nan)
        layer.values.fill_(torch.nan)
    append(branch, random_rows(4, ROWS))
    assert committed.length == PREFIX
    assert same(committed.layers, before)


def test_commit_by_length_takes_one_row_up_to_the_length(committed: CommittedCache):
    branch = append(committed.branch(3), random_rows(3, ROWS))
    expected = [(x.keys[2:3, :, :9].clone(), x.values[2:3, :, :9].clone()) for x in branch.layers]
    committed.commit_length(branch, row=2, length=9)
    assert committed.length == 9
    assert same(committed.layers, expected)


def test_commit_by_path_keeps_the_prefix_and_gathers_the_path(committed: CommittedCache):
    before = committed.layers
    rows = random_rows(1, ROWS)
    committed.commit_path(append(committed.branch(1), rows), [0, 2, 5])
    expected = [
        (torch.cat([k, nk[:, :, [0, 2, 5]]], 2), torch.cat([v, nv[:, :, [0, 2, 5]]], 2))
        for (k, v), (nk, nv) in zip(before, rows, strict=True)
    ]
    assert same(committed.layers, expected)
    assert (committed.fast_commits, committed.full_commits) == (1, 0)


@pytest.mark.parametrize("path", [[0], [0, 1, 2], [0, 3, 5], list(range(ROWS))])
def test_fast_and_full_reorder_give_the_same_state(
    monkeypatch: pytest.MonkeyPatch, path: list[int]
):
    prefix, rows = random_rows(1, PREFIX), random_rows(1, ROWS)
    states = []
    for setting in ("1", "0"):
        monkeypatch.setenv(FAST_CACHE_REORDER, setting)
        cache = CommittedCache()
        cache.commit_length(append(DynamicCache(), prefix), row=0, length=PREFIX)
        cache.commit_path(append(cache.branch(1), rows), path)
        states.append(cache)
    fast, full = states
    assert (fast.fast_commits, fast.full_commits) == (1, 0)
    assert (full.fast_commits, full.full_commits) == (0, 1)
    assert same(fast.layers, full.layers)


@pytest.mark.parametrize("layer", range(LAYERS))
@pytest.mark.parametrize("part", ["keys", "values"])
def test_a_changed_prefix_falls_back_to_the_full_reorder(
    committed: CommittedCache, layer: int, part: str
):
    tree = append(committed.branch(1), random_rows(1, ROWS))
    getattr(tree.layers[layer], part)[0, 1, PREFIX - 2, 3] += 1.0
    positions = [*range(PREFIX), PREFIX, PREFIX + 4]
    expected = [(x.keys[:, :, positions], x.values[:, :, positions]) for x in tree.layers]
    committed.commit_path(tree, [0, 4])
    assert (committed.fast_commits, committed.full_commits) == (0, 1)
    assert same(committed.layers, expected)


def test_an_unknown_reorder_setting_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(FAST_CACHE_REORDER, "yes")
    with pytest.raises(ValueError, match=f"{FAST_CACHE_REORDER}='yes'.*to 0 or 1"):
        CommittedCache()
