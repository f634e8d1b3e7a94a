# SPDX-License-Identifier: Apache-2.0
"""Before traffic: every kernel of the step, once in each form that a batch can make it take.

Triton compiles at a kernel's first launch, for the types, constants and alignments of that launch:
a form that was not launched here would be compiled while requests wait. What decides the form of
our kernels is the batch's size and the trees' shape, and nothing else that a request could change.
"""

from itertools import product
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import torch

from vllm_eagle_pangu.core.policy import FixedShape
from vllm_eagle_pangu.core.request import RequestView
from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.core.tree import TreeBatch
from vllm_eagle_pangu.engine.growth_graphs import Capture, GrowthGraphs
from vllm_eagle_pangu.step.accept import accept
from vllm_eagle_pangu.step.commit import commit
from vllm_eagle_pangu.step.extend import Extended, extension_of
from vllm_eagle_pangu.step.grow import grow_shape
from vllm_eagle_pangu.step.head import Limits
from vllm_eagle_pangu.step.place import PendingTree, Placed, ScheduledTree, place
from vllm_eagle_pangu.step.verify import verify_rows
from vllm_eagle_pangu.step.view import BatchView

# Each further size is a graph more of every shape. Not measured: from how many trees on a level
# takes the GPU longer than the host takes to launch it.
MOST_GRAPHED = 64

if TYPE_CHECKING:
    from vllm_eagle_pangu.engine.runner import TreeRunnerMixin


@torch.inference_mode()
def warm_up(runner: "TreeRunnerMixin") -> None:
    """Run steps of empty prefixes, slots -1 throughout, where Triton's kernels are in use.

    `runner`: a tree runner whose KV cache is there. No page changes, and no request is known to it.
    """
    ops = runner.ops
    if "triton" not in (ops.implementation, ops.attention):
        return
    largest, *others = runner.step.policy.shapes()
    batches = batch_sizes(runner.max_num_reqs)
    for batch in batches:
        _run(runner, largest, batch)
    # Besides the batch's own forms, launched by now, only whether prefixes are split over programs
    # depends on both: for few trees, and not for many.
    for shape, batch in product(others, {batches[0], batches[-1]}):
        _run(runner, shape, batch)


def _run(runner: "TreeRunnerMixin", shape: TreeShape, batch: int) -> None:
    """A step of so many trees."""
    ops, head = runner.ops, runner.draft_head
    limits: Limits = runner.limits
    trees = grow_shape(_extended(runner, batch), shape, FixedShape(shape).deepen, head, limits, ops)
    # As many rows each as one step has room for.
    rows = min(trees.rows, runner.max_num_tokens // batch)
    tokens = [0] * (rows - 1)
    pending = [PendingTree(trees, row, shape.nodes, shape) for row in range(batch)]
    scheduled = [ScheduledTree(i, tokens, tree) for i, tree in enumerate(pending)]
    placed = place(_view(runner, batch, rows), scheduled)
    _verify(runner, placed)
    drawn = torch.zeros(batch * rows, dtype=torch.long, device=runner.device)
    accepted = accept(placed, drawn, limits.depth, ops)
    commit(accepted, runner.pages, ops)
    extension = extension_of(accepted, range(batch), head.group, limits, ops)
    head.run(
        extension.rows.tokens,
        extension.rows.positions,
        _states(runner, extension.rows.tokens.shape[0]),
        head.extend_metadata(extension, None),
        extension.rows.slots,
    )


@torch.inference_mode()
def capture_growth(runner: "TreeRunnerMixin", capture: Capture[TreeBatch]) -> GrowthGraphs:
    """Graphs of all shapes that may be planned, for up to `MOST_GRAPHED` trees. After `warm_up`: a
    graph that is captured must not compile."""
    sizes = batch_sizes(min(runner.max_num_reqs, MOST_GRAPHED))
    graphs = GrowthGraphs(capture, _extended(runner, sizes[-1]), sizes)
    for shape in runner.step.policy.shapes():
        graphs.add(shape, runner.draft_head, runner.limits, runner.ops)
    return graphs


def batch_sizes(most: int) -> list[int]:
    """Powers of two, to which kernels round a batch up, and `most`, which the last one exceeds."""
    return [*(1 << power for power in range((most - 1).bit_length())), most]


def _states(runner: "TreeRunnerMixin", rows: int) -> torch.Tensor:
    """`[rows, H]` of the head."""
    shape = (rows, runner.drafter.hidden_size)
    return torch.zeros(shape, dtype=runner.dtype, device=runner.device)


def _extended(runner: "TreeRunnerMixin", batch: int) -> Extended:
    """Requests without a prefix."""
    zeros = torch.zeros(batch, dtype=torch.long, device=runner.device)
    table = runner.input_batch.block_table[runner.draft_head.group].block_table.gpu
    states = _states(runner, batch)
    return Extended(range(batch), zeros, zeros, states, states, table[:batch])


def _view(runner: "TreeRunnerMixin", batch: int, rows: int) -> BatchView:
    """Requests of `rows` rows each, whose slots are nowhere."""
    nowhere = torch.full((batch * rows,), -1, device=runner.device)
    starts = np.arange(batch + 1) * rows
    tables = dict(enumerate(runner.input_batch.block_table.block_tables))
    return BatchView(
        requests=[RequestView(str(i), 0, 0, rows, False, True) for i in range(batch)],
        tokens=runner.input_batch.token_ids_cpu,
        host_query_start=starts,
        token_ids=runner.input_ids.gpu[: batch * rows],
        positions=torch.zeros_like(nowhere),
        query_start=torch.from_numpy(starts).to(runner.device, torch.int32),
        slots=dict.fromkeys(tables, nowhere),
        block_tables={group: table.block_table.gpu[:batch] for group, table in tables.items()},
    )


def _verify(runner: "TreeRunnerMixin", placed: Placed) -> None:
    """Attend the trees in each of the target's layers."""
    # All that a layer's tree attention reads of vLLM's metadata is `tree`, which is attached.
    metadata = {layer.layer_name: SimpleNamespace() for _, layer in runner.pages.layers}
    runner.pages.attach(metadata, verify_rows(placed))
    rows = placed.view.token_ids.shape[0]
    for _, layer in runner.pages.layers:
        heads, kv_heads = layer.num_heads, layer.num_kv_heads
        shape = (rows, heads + 2 * kv_heads, layer.head_size)
        qkv = torch.zeros(shape, dtype=runner.dtype, device=runner.device)
        query, key, value = qkv.split([heads, kv_heads, kv_heads], dim=1)
        output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        of_layer = metadata[layer.layer_name]
        layer.impl.forward(layer, query, key, value, layer.kv_cache, of_layer, output)
