# SPDX-License-Identifier: Apache-2.0
"""A fault planted in a tree, dumped and replayed: the invariant that it breaks is named."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from vllm_eagle_pangu.core.tree import MASK
from vllm_eagle_pangu.tracing.dump import FailedStep

from .replaying import FAULTY, dumped, findings_by_name, replay, run_command
from .steps import SHAPE, whole_step

DEPTH = "tree: a node is one deeper than its parent"


def same_depth_pair(failed: FailedStep) -> tuple[int, int]:
    """A node below depth 1, and another row of its parent's depth, before it and no likelier."""
    depth, parent = failed.tree.depth[FAULTY].tolist(), failed.tree.parent[FAULTY].tolist()
    score = failed.tree.score[FAULTY].tolist()
    for row in range(SHAPE.rows - 1, 0, -1):
        for other in range(1, row):
            level = depth[other] == depth[row] - 1 and other != parent[row]
            if level and score[other] >= score[row]:
                return row, other
    raise AssertionError("no such pair in this tree")


# Each plants a fault and returns the first row that offends.


def flip_a_seen_bit(failed: FailedStep) -> int:
    row = int(failed.tree.depth[FAULTY].argmax())
    failed.tree.visible[FAULTY, row, failed.tree.parent[FAULTY, row]] = False
    return row


def flip_an_unseen_bit(failed: FailedStep) -> int:
    hidden = (~failed.tree.visible[FAULTY, 9]).nonzero()[:, 0]
    failed.tree.visible[FAULTY, 9, hidden[0]] = True
    return 9


def flip_a_padding_bit(failed: FailedStep) -> int:
    cut = failed.tree.cut(torch.tensor([16, 9]))
    cut.visible[FAULTY, 12, 3] = True
    failed.tree, failed.count, failed.scheduled_token_ids = cut, None, None
    failed.path = failed.draws = None
    return 12


def wrong_parent_of_the_same_depth(failed: FailedStep) -> int:
    row, other = same_depth_pair(failed)
    failed.tree.parent[FAULTY, row] = other
    return row


def wrong_parent_of_another_depth(failed: FailedStep) -> int:
    row = int(failed.tree.depth[FAULTY].argmax())
    failed.tree.parent[FAULTY, row] = 0
    return row


def parent_after_its_child(failed: FailedStep) -> int:
    failed.tree.parent[FAULTY, 5] = 8
    return 5


def parents_in_a_circle(failed: FailedStep) -> int:
    failed.tree.parent[FAULTY, 5], failed.tree.parent[FAULTY, 8] = 8, 5
    return 5


def parent_out_of_range(failed: FailedStep) -> int:
    failed.tree.parent[FAULTY, 5] = -1
    return 5


def wrong_depth(failed: FailedStep) -> int:
    row = int(failed.tree.depth[FAULTY].argmax())
    failed.tree.depth[FAULTY, row] -= 1
    return row


def hole_in_the_nodes(failed: FailedStep) -> int:
    failed.tree.valid[FAULTY, 5] = False
    return 6


def token_in_padding(failed: FailedStep) -> int:
    flip_a_padding_bit(failed)
    failed.tree.tokens[FAULTY, 14] = 3
    return 14


def nan_score(failed: FailedStep) -> int:
    failed.tree.score[FAULTY, 7] = torch.nan
    return 7


def child_above_its_parent(failed: FailedStep) -> int:
    row = int(failed.tree.depth[FAULTY].argmax())
    failed.tree.score[FAULTY, row] = -1e-6
    return row


def root_as_a_node(failed: FailedStep) -> int:
    failed.tree.depth[FAULTY, 0] = 1
    return 0


TREE_FAULTS = {
    flip_a_seen_bit: MASK,
    flip_an_unseen_bit: MASK,
    flip_a_padding_bit: MASK,
    wrong_parent_of_the_same_depth: MASK,
    wrong_parent_of_another_depth: DEPTH,
    parent_after_its_child: "tree: no cycle: a node's parent comes before it",
    parents_in_a_circle: "tree: no cycle: a node's parent comes before it",
    parent_out_of_range: "tree: parents are rows",
    wrong_depth: DEPTH,
    hole_in_the_nodes: "tree: padding comes after the nodes",
    token_in_padding: "tree: padding has token, parent and depth 0",
    nan_score: "tree: no score is NaN",
    child_above_its_parent: "tree: no child outscores its parent",
    root_as_a_node: "tree: the root is row 0, valid, its own parent, at depth 0",
}


@pytest.mark.parametrize("plant", TREE_FAULTS, ids=lambda plant: plant.__name__)
def test_a_fault_in_the_tree_is_named_with_its_row(tmp_path: Path, capsys, plant: Callable):
    failed = whole_step()
    row = plant(failed)
    path = dumped(tmp_path, failed)
    found = findings_by_name(path)
    finding = found[TREE_FAULTS[plant]]
    assert finding.rows[0] == row
    assert f"row {row} " in finding.detail
    assert run_command(path) == 1
    out = capsys.readouterr().out
    assert f"BROKEN {TREE_FAULTS[plant]}" in out and f"request-{FAULTY}, rows {row}" in out


@pytest.mark.parametrize(
    "plant",
    [plant for plant in TREE_FAULTS if plant is not child_above_its_parent],
    ids=lambda plant: plant.__name__,
)
def test_what_the_engines_own_check_says_is_among_the_findings(tmp_path: Path, plant: Callable):
    failed = whole_step()
    plant(failed)
    with pytest.raises(AssertionError) as raised:
        failed.tree.check()
    found = findings_by_name(dumped(tmp_path, failed, raised.value))
    assert str(raised.value) in found


@pytest.mark.parametrize("value", [2**70, 1.5, "1"])
def test_a_tree_that_no_tensor_holds_is_no_dump(tmp_path: Path, value: object):
    path = dumped(tmp_path, whole_step(batch=1))
    record = json.loads(path.read_text())
    record["requests"][0]["tree"]["parent"][3] = value
    path.write_text(json.dumps(record))
    with pytest.raises(ValueError, match=r"dump='.*': no failure dump \(requests: 0: tree: "):
        replay(path)


def test_a_wrong_parent_is_told_from_a_flipped_bit(tmp_path: Path):
    failed = whole_step()
    row, other = same_depth_pair(failed)
    right = int(failed.tree.parent[FAULTY, row])
    failed.tree.parent[FAULTY, row] = other
    detail = findings_by_name(dumped(tmp_path, failed))[MASK].detail
    assert detail.endswith(f"as a child of row {right} would; its parent is {other}")
    flipped = whole_step()
    flip_an_unseen_bit(flipped)
    detail = findings_by_name(dumped(tmp_path, flipped))[MASK].detail
    assert "as a child of" not in detail
