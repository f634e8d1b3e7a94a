# SPDX-License-Identifier: Apache-2.0
"""Tokens emitted through a tree are distributed as if the target had sampled them one by one.

Total variation between N draws and the distribution they come from is noise of at most
sqrt(cells / (2 pi N)) on average: 125 cells and N = 2,000,000 give 0.0032.
"""

import pytest
import torch

from vllm_eagle_pangu.core.tree import TreeBatch
from vllm_eagle_pangu.kernels.tree_accept.cases import random_trees
from vllm_eagle_pangu.kernels.tree_accept.reference import tree_accept

from ..trees import tree_of_parents

VOCAB = 5
TOKENS = 3
CHUNK = 200_000
DRAWS = 10 * CHUNK
ALLOWED = 0.005


def random_target(generator: torch.Generator) -> list[torch.Tensor]:
    """`target[n]: [V**n, V]`: next-token probabilities after each of the V**n prefixes."""
    return [
        (2 * torch.randn(VOCAB**n, VOCAB, generator=generator)).softmax(dim=-1)
        for n in range(TOKENS)
    ]


def analytic(target: list[torch.Tensor]) -> torch.Tensor:
    """`[V**3]`: probability of each sequence of 3 tokens."""
    joint = torch.ones(1)
    for conditional in target:
        joint = (joint[:, None] * conditional).flatten()
    return joint


def tree_without_twins(generator: torch.Generator) -> TreeBatch:
    """One tree of 9 rows with some padding, whose siblings carry different tokens."""
    while True:
        tokens, parent, valid = random_trees(9, TOKENS - 1, 1, VOCAB, generator)
        tree = tree_of_parents(tokens, parent, TOKENS - 1, valid).cut(torch.tensor([7]))
        nodes = range(1, int(tree.node_count) + 1)
        keys = {(int(tree.parent[0, k]), int(tree.tokens[0, k])) for k in nodes}
        if len(keys) == len(nodes) >= 5 and int(tree.depth.max()) == TOKENS - 1:
            return tree


def prefixes_of_rows(tree: TreeBatch) -> list[tuple[int, int]]:
    """(length, code in base V) of the drafted tokens that lead to each row."""
    codes = [(0, 0)]
    for k in range(1, tree.rows):
        length, code = codes[int(tree.parent[0, k])]
        codes.append((length + 1, code * VOCAB + int(tree.tokens[0, k])))
    return codes


def sample(rows: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """`[N]`: one token per row of `rows: [N, V]` by inverse transform."""
    uniform = torch.rand(rows.shape[0], 1, generator=generator)
    return (rows.cumsum(dim=-1) < uniform).sum(dim=-1).clamp(max=VOCAB - 1)


def emit(tree: TreeBatch, target, generator: torch.Generator, spoil: bool = False) -> torch.Tensor:
    """`[CHUNK]`: codes of the first 3 tokens; after the walk's bonus, sampled one by one."""
    copies = tree.select(torch.zeros(CHUNK, dtype=torch.int64))
    draws = torch.stack(
        [
            torch.multinomial(target[length][code], CHUNK, True, generator=generator)
            for length, code in prefixes_of_rows(tree)
        ],
        dim=1,
    )
    if spoil:
        # What many trees get wrong: a second chance to land on the first child.
        again = torch.multinomial(target[0][0], CHUNK, True, generator=generator)
        first = tree.tokens[0, 1]
        draws[:, 0] = first.where(again == first, draws[:, 0])
    paths = tree_accept(copies.tokens, copies.parent, copies.valid, draws, TOKENS - 1)
    code = torch.zeros(CHUNK, dtype=torch.int64)
    for n in range(TOKENS):
        one_by_one = sample(target[n][code], generator)
        token = paths.output[:, n].where(n <= paths.length, one_by_one)
        code = code * VOCAB + token
    return code


def ancestral(target, generator: torch.Generator) -> torch.Tensor:
    """`[CHUNK]`: codes of 3 tokens sampled one by one."""
    code = torch.zeros(CHUNK, dtype=torch.int64)
    for conditional in target:
        code = code * VOCAB + sample(conditional[code], generator)
    return code


def frequencies(draw, chunks: int = DRAWS // CHUNK) -> torch.Tensor:
    counts = sum(torch.bincount(draw(), minlength=VOCAB**TOKENS) for _ in range(chunks))
    return counts / (chunks * CHUNK)


def total_variation(left: torch.Tensor, right: torch.Tensor) -> float:
    return float((left - right).abs().sum() / 2)


@pytest.mark.parametrize("seed", range(3))
def test_first_three_tokens_are_distributed_as_the_targets(seed):
    generator = torch.Generator().manual_seed(seed)
    target, tree = random_target(generator), tree_without_twins(generator)
    emitted = frequencies(lambda: emit(tree, target, generator))
    sampled = frequencies(lambda: ancestral(target, generator))
    assert total_variation(emitted, analytic(target)) < ALLOWED
    assert total_variation(emitted, sampled) < ALLOWED


def test_a_biased_draw_would_be_noticed():
    generator = torch.Generator().manual_seed(0)
    target, tree = random_target(generator), tree_without_twins(generator)
    emitted = frequencies(lambda: emit(tree, target, generator, spoil=True), chunks=2)
    assert total_variation(emitted, analytic(target)) > 3 * ALLOWED
