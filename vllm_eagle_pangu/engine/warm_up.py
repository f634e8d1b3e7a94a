# SPDX-License-Identifier: Apache-2.0
"""Before traffic: every kernel of the step, once in each form that a batch can make it take.

Triton compiles at a kernel's first launch, for the types, constants and alignments of that launch:
a form that was not launched here would be compiled while requests wait. What decides the form of
our kernels is the batch's size and nothing else that a request could change.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from vllm_eagle_pangu.core.indices import index_range
from vllm_eagle_pangu.core.paths import AcceptedPaths
from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.core.tree import TreeBatch
from vllm_eagle_pangu.engine.drafter import TreeDrafter, TreeOnlyMetadata
from vllm_eagle_pangu.engine.extension import Extension
from vllm_eagle_pangu.engine.tree_rows import TreeRows
from vllm_eagle_pangu.engine.tree_step import StoredTree, TreeStep, lay_out
from vllm_eagle_pangu.kernels.draft_batch import draft_batch
from vllm_eagle_pangu.kernels.tree_accept import tree_accept


@dataclass
class _Metadata:
    """What a layer's tree attention reads of vLLM's metadata."""

    tree: TreeRows | None = None


@torch.inference_mode()
def warm_up(runner: Any) -> None:
    """Run steps of empty prefixes, slots -1 throughout, where Triton's kernels are in use.

    `runner`: a tree runner whose KV cache is there. No page changes, and no request is known to it.
    """
    if "triton" not in (runner.implementation, runner.attention):
        return
    for batch in batch_sizes(runner.max_num_reqs):
        shape = runner.tree_policy.shape(batch)
        step = _placed(runner, _grown(runner.tree_drafter, shape, batch), shape)
        _verify(runner, step)
        draws = torch.zeros_like(step.tree.tokens)
        depth = runner.tree_config.shape().depth
        paths = tree_accept(step.tree, draws, depth, implementation=runner.implementation)
        runner._commit(step, paths)
        _extend(runner, step, batch)


def batch_sizes(most: int) -> Iterator[int]:
    """Powers of two, to which kernels round a batch up, and `most`, which the last one exceeds."""
    size = 1
    while size < most:
        yield size
        size *= 2
    yield most


def _grown(drafter: TreeDrafter, shape: TreeShape, batch: int) -> TreeBatch:
    device = drafter.runner.device
    requests = torch.arange(batch, device=device)
    zeros = torch.zeros_like(requests)
    hidden = drafter.vllm_config.speculative_config.draft_model_config.get_hidden_size()
    state = torch.zeros(batch, hidden, dtype=drafter.runner.dtype, device=device)
    return drafter._grow(
        shape, requests, root_tokens=zeros, prefix_len=zeros, last=state, state=state
    )


def _placed(runner: Any, tree: TreeBatch, shape: TreeShape) -> TreeStep:
    """The trees alone in their batch, cut to as many rows each as one step has room for."""
    count = tree.batch_size
    rows = min(tree.rows, runner.max_num_tokens // count)
    nowhere = torch.full((count * rows,), -1, device=runner.device)
    return lay_out(
        trees=[StoredTree(tree, row, shape.nodes, shape) for row in range(count)],
        requests=range(count),
        counts=[rows] * count,
        first_rows=range(0, count * rows, rows),
        prefix_lens=[0] * count,
        logit_counts=[rows] * count,
        linear_positions=torch.zeros_like(nowhere),
        linear_slots={group: nowhere for group, _ in runner.tree_layers},
    )


def _verify(runner: Any, step: TreeStep) -> None:
    """Attend the trees in each of the target's layers."""
    metadata = {layer.layer_name: _Metadata() for _, layer in runner.tree_layers}
    runner._attach_trees(metadata, step)
    rows = step.batch_rows.shape[0]
    for _, layer in runner.tree_layers:
        heads, kv_heads = layer.num_heads, layer.num_kv_heads
        shape = (rows, heads + 2 * kv_heads, layer.head_size)
        qkv = torch.zeros(shape, dtype=runner.dtype, device=runner.device)
        query, key, value = qkv.split([heads, kv_heads, kv_heads], dim=1)
        output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        of_layer = metadata[layer.layer_name]
        layer.impl.forward(layer, query, key, value, layer.kv_cache, of_layer, output)


def _extend(runner: Any, step: TreeStep, batch: int) -> None:
    """Extend the head by nothing accepted: each request has one row of the target's."""
    drafter, device = runner.tree_drafter, runner.device
    depth, starts = drafter.depth, runner.query_start_loc.gpu
    path = torch.zeros(batch, depth + 1, dtype=torch.long, device=device)
    rows = draft_batch(
        input_ids=runner.input_ids.gpu[:batch],
        positions=runner.positions[:batch],
        query_start=index_range(batch + 1, device).to(starts.dtype),
        is_tree=torch.ones(batch, dtype=torch.bool, device=device),
        paths=AcceptedPaths(path, path[:, 0].contiguous(), path),
        next_tokens=path[:, 0].contiguous(),
        linear_slots=torch.full((batch,), -1, device=device),
        depth=depth,
        rows=batch * (depth + 1),
        implementation=runner.implementation,
    )
    hidden = drafter.vllm_config.speculative_config.draft_model_config.get_hidden_size()
    states = torch.zeros(rows.tokens.shape[0], hidden, dtype=runner.dtype, device=device)
    starts = np.arange(batch + 1) * (depth + 1)
    extension = Extension.of(rows, starts, list(range(batch)))
    trees = extension.trees(step)
    assert trees is not None
    metadata = TreeOnlyMetadata(drafter._accepted_rows(extension, trees))
    drafter.head(rows.tokens, rows.positions, states, metadata, rows.slots)
