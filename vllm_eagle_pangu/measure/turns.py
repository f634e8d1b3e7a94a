# SPDX-License-Identifier: Apache-2.0
"""The order of measuring: neighbours in time are compared, so that a slow minute slows them all."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

Way = TypeVar("Way")
Block = TypeVar("Block")


def turns(
    ways: Sequence[Way], blocks: Sequence[Block], repeats: int
) -> Iterator[tuple[int, Block, tuple[Way, ...]]]:
    """(repeat, block of work, the ways in the order in which they take it).

    All take a block before the next one comes; who begins changes, so that nobody always comes
    behind the same neighbour's caches.
    """
    for repeat in range(repeats):
        for place, block in enumerate(blocks):
            first = (repeat + place) % len(ways)
            yield repeat, block, (*ways[first:], *ways[:first])
