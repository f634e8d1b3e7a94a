# SPDX-License-Identifier: Apache-2.0
"""Trees grown by replaying a CUDA graph: one launch for the some thirty of each level.

A graph is of one shape and one number of trees. It reads copies of what trees are grown from, and
those that it has room for beyond a step's are grown behind no prefix, for nobody.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
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
    """A `step.grow.GrowShape` for policies that grow trees whole, as they do on devices.

    `most`: what as many trees as any graph has are grown from; graphs read copies of it. `sizes`:
    numbers of trees that graphs may have.
    """

    def __init__(self, capture: Capture[TreeBatch], most: Extended, sizes: Sequence[int]) -> None:
        assert most.read_from is None
        self.capture = capture
        self.sizes = sorted(sizes)
        self._inputs = {name: getattr(most, name).clone() for name in INPUTS}
        self._of: dict[tuple[TreeShape, int], Graph] = {}

    def add(self, shape: TreeShape, head: Head, limits: Limits, ops: Ops) -> None:
        """All graphs of one shape, before requests come: this runs the head."""
        # The largest first: the others find room in its memory.
        for size in reversed(self.sizes):
            views = {name: buffer[:size] for name, buffer in self._inputs.items()}
            inputs = Extended(range(size), **views)
            run = partial(grow_shape, inputs, shape, FixedShape(shape).deepen, head, limits, ops)
            with held() as constants:
                # What is made once must not be made by the graph.
                run()
                replay, trees = self.capture(run)
            self._of[shape, size] = Graph(inputs, trees, replay, constants)

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
        count = len(extended.requests)
        size = next((size for size in self.sizes if size >= count), 0)
        graph = self._of.get((shape, size))
        if graph is None or extended.read_from is not None:
            return grow_shape(extended, shape, deepen, head, limits, ops)
        for name in INPUTS:
            getattr(graph.inputs, name)[:count].copy_(getattr(extended, name))
        graph.inputs.prefix_len[count:].zero_()
        graph.replay()
        for level in range(1, shape.depth):
            assert deepen(level, graph.trees.score), "on a device trees are grown whole"
        return graph.trees.copy_of(count)


def capture_on_gpu(pool: tuple[int, int]) -> Capture[TreeBatch]:
    """Captures into CUDA graphs, which share the memory `pool`: results are for one at a time."""

    def capture(run: Callable[[], TreeBatch]) -> tuple[Callable[[], object], TreeBatch]:
        graph = torch.cuda.CUDAGraph()
        # One that fails would leave its own stream the current one.
        with torch.cuda.stream(torch.cuda.current_stream()), torch.cuda.graph(graph, pool=pool):
            result = run()
        return graph.replay, result

    return capture
