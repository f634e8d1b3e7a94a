# SPDX-License-Identifier: Apache-2.0
"""Random inputs and comparisons that tests of several ops share."""

import dataclasses
import random
from typing import Any

import torch

from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.core.tree import TreeBatch

from ..trees import tree_of_parents
from .chosen import IMPLEMENTATION


def assert_same_fields(actual: Any, expected: Any) -> None:
    for field in dataclasses.fields(expected):
        mine, theirs = getattr(actual, field.name), getattr(expected, field.name)
        if isinstance(theirs, torch.Tensor):
            assert mine.dtype == theirs.dtype, field.name
            torch.testing.assert_close(mine, theirs, rtol=0, atol=0, msg=field.name)
        else:
            assert mine == theirs, field.name


def tree_of(inputs: dict[str, Any]) -> TreeBatch:
    """The trees of tree_accept's inputs, whose padding is as it should be."""
    tree = tree_of_parents(*(inputs[n] for n in ("tokens", "parent", "depth", "valid")))
    assert torch.equal(tree.tokens, inputs["tokens"])
    assert torch.equal(tree.parent, inputs["parent"])
    return tree


def of_tree(tree: TreeBatch) -> dict[str, torch.Tensor]:
    """What tree_accept takes of trees."""
    return {"tokens": tree.tokens, "parent": tree.parent, "valid": tree.valid}


def random_shape(draw: random.Random) -> TreeShape:
    # Interpreted kernels take a second for a large tree.
    widest = 8 if IMPLEMENTATION == "cpp" or draw.random() < 0.02 else 3
    width, depth = draw.randint(1, widest), draw.randint(1, 6)
    capacity = TreeShape(width, depth, 1).capacity
    return TreeShape(width, depth, draw.randint(1, draw.choice((min(capacity, 16), capacity))))


def spoil(scores: torch.Tensor, draw: random.Random) -> torch.Tensor:
    """Ties, NaN, infinities and certainty in some draws."""
    coin = torch.rand(scores.shape)
    if draw.random() < 0.4:
        scores = scores.round()
    if draw.random() < 0.3:
        scores = scores.masked_fill(coin < 0.3, 0.0)
    if draw.random() < 0.3:
        scores = scores.masked_fill(coin > 0.8, torch.nan).masked_fill(coin > 0.9, -torch.inf)
    if draw.random() < 0.1:
        scores = scores.masked_fill(coin > 0.95, torch.inf)
    return torch.full_like(scores, -torch.inf) if draw.random() < 0.05 else scores
