# SPDX-License-Identifier: Apache-2.0
"""Steps as the engine makes them: a grown tree, the walk of draws, the commit plan."""

import torch

from vllm_eagle_pangu.core.draft import TreeGrower
from vllm_eagle_pangu.core.ops import Ops
from vllm_eagle_pangu.core.paths import AcceptedPaths
from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.core.tree import TreeBatch
from vllm_eagle_pangu.kernels.kv_commit.reference import commit_slots
from vllm_eagle_pangu.kernels.tree_accept.reference import tree_accept
from vllm_eagle_pangu.tracing.dump import CacheState, FailedStep

SHAPE = TreeShape(4, 5, 16)
BLOCK_SIZE = 8


def grown_tree(batch: int = 2, seed: int = 0, vocab: int = 1000) -> TreeBatch:
    generator = torch.Generator().manual_seed(seed)
    grower = TreeGrower(SHAPE, Ops.bind("reference"))

    def level(*rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        size = (batch, *rows, SHAPE.width)
        scores = torch.randn(size, generator=generator).log_softmax(-1)
        tokens = torch.randint(1, vocab, size, generator=generator)
        return scores.sort(dim=-1, descending=True).values, tokens

    grower.grow(*level())
    for _ in range(SHAPE.depth - 1):
        grower.grow(*level(SHAPE.width))
    return grower.finish(torch.randint(1, vocab, (batch,), generator=generator))


def agreeing_draws(tree: TreeBatch) -> torch.Tensor:
    """`[B, R]`: at each row the child that leads deepest is drawn, at leaves 0, as no node has."""
    draws = torch.zeros_like(tree.tokens)
    for b in range(tree.batch_size):
        parent, depth = tree.parent[b].tolist(), tree.depth[b].tolist()
        reach = list(depth)
        for row in range(int(tree.node_count[b]), 0, -1):
            if reach[row] >= reach[parent[row]]:
                reach[parent[row]] = reach[row]
                draws[b, parent[row]] = tree.tokens[b, row]
    return draws


def walk(tree: TreeBatch, draws: torch.Tensor) -> AcceptedPaths:
    """What the draws accept of the tree, by the definition."""
    depth = tree.max_depth
    return tree_accept(tree.tokens, tree.parent, tree.valid, draws, depth)


def whole_step(batch: int = 2, seed: int = 0) -> FailedStep:
    """A step that went well, everything known; each request has four blocks of its own."""
    tree = grown_tree(batch, seed)
    draws = agreeing_draws(tree)
    paths = walk(tree, draws)
    prefix_len = torch.tensor([5 + 2 * b for b in range(batch)])
    block_ids = [[4 * b + 2, 4 * b + 5, 4 * b + 3, 4 * b + 4] for b in range(batch)]
    positions = prefix_len[:, None] + torch.arange(SHAPE.rows)
    blocks = torch.tensor(block_ids)
    slots = blocks.gather(1, positions // BLOCK_SIZE) * BLOCK_SIZE + positions % BLOCK_SIZE
    return FailedStep(
        requests=[f"request-{b}" for b in range(batch)],
        step=12,
        prompt_token_ids=[list(range(100, 103)) for _ in range(batch)],
        output_token_ids=[
            [*range(200, 200 + t - 3), root]
            for t, root in zip(prefix_len.tolist(), tree.tokens[:, 0].tolist(), strict=True)
        ],
        scheduled_token_ids=[tokens[1:] for tokens in tree.tokens.tolist()],
        prefix_len=prefix_len,
        count=tree.valid.sum(1),
        greedy=[True] * batch,
        tree=tree,
        draws=draws,
        path=paths,
        caches=[
            CacheState(
                group=0,
                block_size=BLOCK_SIZE,
                block_ids=block_ids,
                linear_slots=slots,
                commit_slots=commit_slots(paths.rows, slots),
            )
        ],
    )
