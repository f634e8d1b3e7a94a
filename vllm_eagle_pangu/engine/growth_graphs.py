# SPDX-License-Identifier: Apache-2.0
"""Trees grown by replaying a CUDA graph: one launch for the some thirty of each level.

A graph is of one shape and one number of trees. It reads copies of what trees are grown from, and
those that it has room for beyond a step's are grown behind no prefix, for nobody.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import torch

from vllm_eagle_pangu.core.ops import Ops
from vllm_eagle_pangu.core.policy import FixedShape
from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.core.tree import TreeBatch
from vllm_eagle_pangu.kernels.indices import held
from vllm_eagle_pangu.step.extend import Extended
from vllm_eagle_pangu.step.grow import Deepen, grow_shape
from vllm_eagle_pangu.step.head import Head, Limits

R = TypeVar("R")
# Runs a function, and gives what does so again, into the same result.
Capture: TypeAlias = Callable[[Callable[[], R]], tuple[Callable[[], object], R]]

INPUTS = ("root_tokens", "prefix_len", "last", "state", "block_table")


@dataclass(frozen=True)
class Graph:
    """`inputs` and `trees`: what a `replay` reads and writes; `constants`: what else it reads."""

    inputs: Extended
    trees: TreeBatch
    replay: Callable[[], object]
    constants: list[object]


class GrowthGraphs:
    """A `step.grow.GrowShape` for policies that grow trees whole, as they do on devices."""

    def __init__(self, capture: Capture[TreeBatch]) -> None:
        self.capture = capture
        self._of: dict[TreeShape, dict[int, Graph]] = {}

    def add(
        self, extended: Extended, shape: TreeShape, head: Head, limits: Limits, ops: Ops
    ) -> None:
        """For trees of one shape, as many as `extended` or less, of which the graph makes its own.
        Ascending, and before requests come: this runs the head."""
        assert extended.read_from is None
        copies = {name: getattr(extended, name).clone() for name in INPUTS}
        inputs = Extended(extended.requests, **copies)

        def run() -> TreeBatch:
            return grow_shape(inputs, shape, FixedShape(shape).deepen, head, limits, ops)

        with held() as constants:
            # What is made once must not be made by the graph.
            run()
            replay, trees = self.capture(run)
        graph = Graph(inputs, trees, replay, constants)
        self._of.setdefault(shape, {})[len(inputs.requests)] = graph

    def __call__(
        self,
        extended: Extended,
        shape: TreeShape,
        deepen: Deepen,
        head: Head,
        limits: Limits,
        ops: Ops,
    ) -> TreeBatch:
        """See `grow_shape`, which grows what no graph has room for."""
        graphs, count = self._of.get(shape, {}), len(extended.requests)
        sizes = list(graphs)
        place = bisect_left(sizes, count)
        if place == len(sizes) or extended.read_from is not None:
            return grow_shape(extended, shape, deepen, head, limits, ops)
        graph = graphs[sizes[place]]
        for name in INPUTS:
            getattr(graph.inputs, name)[:count].copy_(getattr(extended, name))
        graph.inputs.prefix_len[count:].zero_()
        graph.replay()
        for level in range(1, shape.depth):
            # Only counted: on a device scores are not read.
            deepen(level, graph.trees.score)
        return graph.trees.copy_of(count)


def capture_on_gpu(pool: tuple[int, int]) -> Capture[TreeBatch]:
    """Captures into CUDA graphs, which share the memory `pool`: results are for one at a time."""

    def capture(run: Callable[[], TreeBatch]) -> tuple[Callable[[], object], TreeBatch]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            result = run()
        return graph.replay, result

    return capture
