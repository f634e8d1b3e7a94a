# SPDX-License-Identifier: Apache-2.0
"""The oracle's naive trees against the tensor ops that the engine uses."""

from pathlib import Path

import pytest
import torch
from transformers import DynamicCache

from vllm_eagle_pangu.core.draft import TreeGrower
from vllm_eagle_pangu.core.ops import Ops
from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.core.tree import TreeBatch
from vllm_eagle_pangu.kernels.tree_accept.reference import tree_accept

from ..trees import tree_of_parents
from .decoder import OracleDecoder
from .drafter import ReferenceDrafter
from .tree import Tree, grow

PROMPT = [256, 72, 101, 108, 108, 111]
SHAPES = [TreeShape(1, 5, 5), TreeShape(2, 3, 6), TreeShape(3, 4, 7), TreeShape(4, 5, 16)]


@pytest.fixture(scope="module")
def oracle(tiny_pangu: Path, tiny_head: Path) -> OracleDecoder:
    return OracleDecoder(tiny_pangu, tiny_head)


def test_a_tree_by_hand_is_walked_to_the_bonus():
    #        0
    #      /   \
    #     1     2
    #    / \     \
    #   3   4     5
    tree = Tree([9, 1, 2, 3, 4, 5], [0, 0, 0, 1, 1, 2], [0, 1, 1, 2, 2, 2], [0.0] * 6)
    assert tree.leaves() == [3, 4, 5]
    assert tree.path_to(4) == [0, 1, 4]
    assert tree.visible()[4].tolist() == [True, True, False, False, True, False]
    assert tree.accept([1, 4, 5, 0, 7, 0]) == [0, 1, 4]
    assert tree.accept([2, 4, 6, 0, 7, 0]) == [0, 2]
    assert tree.accept([3, 4, 5, 0, 7, 0]) == [0]


def test_a_tree_without_nodes_has_its_root_as_leaf():
    assert Tree([9], [0], [0], [0.0]).leaves() == [0]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_core_grows_and_builds_the_same_trees(oracle: OracleDecoder, shape: TreeShape):
    assert oracle.drafter is not None
    for n in range(2, len(PROMPT) + 1):
        root, row, committed = drafted_prompt(oracle, PROMPT[:n])
        tree = grow(oracle.drafter, root, row, committed, shape)
        batch = grow_in_core(oracle.drafter, root, row, committed, shape)
        batch.check()
        assert batch.tokens[0].tolist() == tree.tokens
        assert batch.parent[0].tolist() == tree.parent
        assert batch.depth[0].tolist() == tree.depth
        assert torch.equal(batch.visible[0], tree.visible())
        torch.testing.assert_close(batch.score[0], torch.tensor(tree.score), rtol=0, atol=1e-5)


def test_tree_accept_takes_the_same_path(oracle: OracleDecoder):
    shape = TreeShape(4, 5, 16)
    for step in oracle.tree(PROMPT, 60, shape).steps:
        tree = step.tree
        tokens, parent = torch.tensor([tree.tokens]), torch.tensor([tree.parent])
        batch = tree_of_parents(tokens, parent, shape.depth)
        draws = step.logits.argmax(-1)[None]
        paths = tree_accept(batch.tokens, batch.parent, batch.valid, draws, shape.depth)
        accepted = int(paths.length)
        assert paths.rows[0, : accepted + 1].tolist() == step.path
        assert paths.output[0, : accepted + 1].tolist() == step.emitted


@torch.no_grad()
def drafted_prompt(oracle: OracleDecoder, prompt: list[int]):
    """The next token, the drafter's row for it, and the drafter's keys and values up to it."""
    positions = torch.arange(len(prompt))[None]
    logits, taps = oracle.target.forward(torch.tensor([prompt]), positions, DynamicCache())
    root = int(logits[0, -1].argmax())
    committed: list = []
    hidden_states = oracle.drafter.combine(taps[0])
    for position, token in enumerate([*prompt[1:], root]):
        row = oracle.drafter.row(token, hidden_states[position], position, committed)
        committed.append(row.key_value)
    return root, row, committed


@torch.no_grad()
def grow_in_core(drafter: ReferenceDrafter, root: int, row, committed, shape) -> TreeBatch:
    """core's TreeGrower, fed by the oracle's drafter through the frontier's scratch mask."""
    grower = TreeGrower(shape, Ops.bind("reference"))

    def children(rows: list):
        best = torch.stack([r.log_probs for r in rows]).topk(shape.width)
        return best.values[None], drafter.target_ids[best.indices][None]

    scores, tokens = children([row])
    frontier = grower.grow(scores[:, 0], tokens[:, 0])
    above, scratch = [row] * shape.width, []
    for _ in range(2, shape.depth + 1):
        position = len(committed) + frontier.level - 1
        rows = []
        for w in range(shape.width):
            seen = frontier.visible[0, w, : len(scratch)].nonzero()[:, 0].tolist()
            hidden = above[int(frontier.parent[0, w])].hidden
            past = [*committed, *(scratch[i] for i in seen)]
            rows.append(drafter.row(int(frontier.tokens[0, w]), hidden, position, past))
        scratch += [r.key_value for r in rows]
        frontier = grower.grow(*children(rows))
        above = rows
    return grower.finish(torch.tensor([root]))
