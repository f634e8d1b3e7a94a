# SPDX-License-Identifier: Apache-2.0
"""A fault planted in an accepted path, dumped and replayed: the invariant it breaks is named."""

from collections.abc import Callable
from pathlib import Path

import pytest

from vllm_eagle_pangu.core.paths import LENGTH
from vllm_eagle_pangu.tracing import cache_invariants
from vllm_eagle_pangu.tracing.dump import FailedStep
from vllm_eagle_pangu.tracing.replay import WALK

from .replaying import (
    FAULTY,
    accepted_rows,
    cache_slots,
    dumped,
    findings_by_name,
    run_command,
)
from .steps import SHAPE, whole_step

STARTS_AT_ROOT = "path: it starts at the root"
PADDING = "path: beyond its length rows are 0 and the output is -1"
NODES = "path: its rows are nodes of the tree"
CHILDREN = "path: each row is a child of the one before"
TOKENS = "path: an accepted node's token is the one emitted"
DRAWS = "path: each output token is the target's draw at its row"

# Each plants a fault and returns the first row that offends, if one does.


def sibling_on_the_path(failed: FailedStep) -> list[int]:
    """The last accepted row that has a sibling is replaced by it."""
    parent = failed.tree.parent[FAULTY].tolist()
    for place, row in reversed(list(enumerate(accepted_rows(failed), start=1))):
        siblings = [r for r in range(1, SHAPE.rows) if parent[r] == parent[row] and r != row]
        if siblings:
            failed.path.rows[FAULTY, place] = siblings[0]
            return siblings[:1]
    raise AssertionError("no such row in this tree")


def stranger_on_the_path(failed: FailedStep) -> list[int]:
    """Row 1 of the path is replaced by a leaf of another branch."""
    tree, path = failed.tree, failed.path.rows[FAULTY]
    other = [r for r in range(1, SHAPE.rows) if tree.depth[FAULTY, r] >= 2 and r not in path]
    path[1] = other[-1]
    return [other[-1]]


def path_row_out_of_range(failed: FailedStep) -> list[int]:
    failed.path.rows[FAULTY, 1] = 40
    return [40]


def path_of_padding(failed: FailedStep) -> list[int]:
    failed.path.rows[FAULTY, 1] = 0
    return [0]


def path_not_from_the_root(failed: FailedStep) -> list[int]:
    failed.path.rows[FAULTY, 0] = 3
    return [3]


def path_too_short(failed: FailedStep) -> list[int]:
    """The walk stopped early: everything consistent, but not where the draws lead."""
    paths, length = failed.path, int(failed.path.length[FAULTY])
    last = int(paths.rows[FAULTY, length])
    paths.rows[FAULTY, length], paths.output[FAULTY, length] = 0, -1
    paths.length[FAULTY] -= 1
    failed.caches[0].commit_slots = cache_slots(failed)
    return [last]


def path_longer_than_it_says(failed: FailedStep) -> list[int]:
    paths, length = failed.path, int(failed.path.length[FAULTY])
    paths.length[FAULTY] -= 1
    return [int(paths.rows[FAULTY, length])]


def row_beyond_the_path(failed: FailedStep) -> list[int]:
    path_too_short(failed)
    failed.path.rows[FAULTY, -1] = 2
    return [2]


def token_beyond_the_path(failed: FailedStep) -> list[int]:
    path_too_short(failed)
    failed.path.output[FAULTY, -1] = 2
    return []


def path_length_out_of_range(failed: FailedStep) -> list[int]:
    failed.path.length[FAULTY] = 6
    return []


def token_that_was_not_drawn(failed: FailedStep) -> list[int]:
    place = int(failed.path.length[FAULTY])
    failed.path.output[FAULTY, place] = 4321
    return [int(failed.path.rows[FAULTY, place])]


def tokens_of_another_node(failed: FailedStep) -> list[int]:
    failed.path.output[FAULTY, 0] = 4321
    return [int(failed.path.rows[FAULTY, 1])]


PATH_FAULTS = [
    (sibling_on_the_path, WALK),
    (sibling_on_the_path, TOKENS),
    (stranger_on_the_path, CHILDREN),
    (stranger_on_the_path, WALK),
    (path_row_out_of_range, NODES),
    (path_of_padding, NODES),
    (path_not_from_the_root, STARTS_AT_ROOT),
    (path_too_short, WALK),
    (path_longer_than_it_says, PADDING),
    (row_beyond_the_path, PADDING),
    (token_beyond_the_path, PADDING),
    (path_length_out_of_range, LENGTH),
    (token_that_was_not_drawn, DRAWS),
    (tokens_of_another_node, TOKENS),
]


@pytest.mark.parametrize(
    ("plant", "invariant"), PATH_FAULTS, ids=[f"{p.__name__}-{i[:30]}" for p, i in PATH_FAULTS]
)
def test_a_fault_in_the_path_is_named_with_its_row(tmp_path: Path, plant: Callable, invariant: str):
    failed = whole_step()
    rows = plant(failed)
    path = dumped(tmp_path, failed)
    assert list(findings_by_name(path)[invariant].rows[:1]) == rows
    assert run_command(path) == 1


def test_a_path_that_stopped_early_breaks_nothing_but_the_walk(tmp_path: Path):
    failed = whole_step()
    path_too_short(failed)
    assert list(findings_by_name(dumped(tmp_path, failed))) == [WALK]


def test_a_corrupted_path_index_also_shows_in_the_commit(tmp_path: Path):
    """The plan was made of the right path, so it disagrees with the corrupted one."""
    failed = whole_step()
    stranger_on_the_path(failed)
    found = findings_by_name(dumped(tmp_path, failed))
    assert cache_invariants.ACCEPTED in found and cache_invariants.REJECTED in found
