# SPDX-License-Identifier: Apache-2.0
"""The shapes among which the tuner chooses."""

from collections.abc import Iterable

from vllm_eagle_pangu.core.shape import TreeShape, chain_shape

WIDTHS = (1, 2, 3, 4, 6, 8)
DEPTH = 10
BUDGETS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 20, 24, 32, 40, 48, 64)
# Of vLLM's own chains.
CHAINS = (2, 3, 4, 5, 6, 8)
# Rows that a target's forward may take: beyond, each row costs about the same, and drafts lose.
CPU_ROWS, DEVICE_ROWS = 256, 2048


def budgets(batch_size: int, device: str) -> tuple[int, ...]:
    """The values of M worth a try; at least one."""
    rows = CPU_ROWS if device == "cpu" else DEVICE_ROWS
    most = max(1, rows // batch_size - 1)
    return tuple(nodes for nodes in BUDGETS if nodes <= most)


def largest(nodes: int) -> TreeShape:
    """The shape of an engine that can draft every shape of up to `nodes` nodes."""
    # An engine is no deeper than it has nodes.
    return TreeShape(WIDTHS[-1], DEPTH, max(nodes, DEPTH))


def shapes(nodes: Iterable[int]) -> list[TreeShape]:
    """Every shape of these budgets; depths that a budget cannot reach are left out."""
    found = [chain_shape(depth) for depth in range(1, DEPTH + 1) if depth in set(nodes)]
    for width in WIDTHS[1:]:
        for depth in range(1, DEPTH + 1):
            capacity = width + (depth - 1) * width * width
            fitting = [count for count in nodes if depth <= count <= capacity]
            found += [TreeShape(width, depth, count) for count in fitting]
    return found


# What `--sweep` runs to see how close the choice came: from narrow to wide, shallow to deep.
_SWEEP = [(2, 2, 4), (2, 3, 6), (2, 4, 8), (2, 6, 10), (3, 3, 8), (3, 4, 8), (3, 5, 12), (3, 7, 14)]
_SWEEP += [(4, 4, 10), (4, 5, 12), (4, 5, 16), (4, 6, 20), (6, 4, 16), (6, 6, 24), (8, 6, 32)]
SWEEP = tuple(TreeShape(*shape) for shape in _SWEEP)
SWEEP_CHAINS = (1, 2, 3, 4, 5, 6, 7, 8)
