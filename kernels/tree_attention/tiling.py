# SPDX-License-Identifier: Apache-2.0
"""How the Triton kernels of tree attention are cut into programs: sizes known to the host only."""

import functools
from dataclasses import dataclass

import torch
import triton

# A split shorter than this costs more to merge than to attend.
_LEAST_KEYS_PER_SPLIT = 256
_MOST_SPLITS = 64


@dataclass(frozen=True)
class Tile:
    """`rows` (tree row, query head) pairs against `keys` paged keys or `dense_keys` dense ones per
    turn of a loop; `head`: padded K; `stages`: loop turns whose loads are under way at a time.
    """

    rows: int
    keys: int
    dense_keys: int
    head: int
    warps: int
    stages: int
    dense_stages: int | None


def tile_for(rows: int, head_size: int, dtype: torch.dtype) -> Tile:
    """The tile for at most `rows` (tree row, query head) pairs of one KV head."""
    head = max(16, triton.next_power_of_2(head_size))
    if dtype == torch.float32:
        # No tensor cores: operands sit in registers, so tiles are small. Asking for one stage
        # outright would make Triton 3.9 keep all of the query there.
        keys = 32 if head <= 128 else 16
        return Tile(16, keys, 16, head, warps=8, stages=1, dense_stages=None)
    pairs = min(64, max(16, triton.next_power_of_2(rows)))
    if head <= 128:
        # Accumulator and scores take some 100 of the 255 registers of 4 warps. Masks take as many:
        # half as many dense keys, and no second stage of them, leave nothing to spill.
        return Tile(pairs, 64, 32, head, warps=4, stages=2, dense_stages=1)
    # The accumulator is twice as large: 8 warps share it, and 96 KB of shared memory hold 32 keys.
    return Tile(pairs, 32, 32, head, warps=8, stages=2, dense_stages=1)


def prefix_splits(programs: int, capacity: int, processors: int) -> int:
    """Into how many parts a prefix is split where `programs` programs would each walk all of it.

    Two programs per processor hide each other's loads. `capacity`: keys that a block table has
    room for; prefixes themselves are known to the device only.
    """
    wanted = 2 * processors // max(1, programs)
    return max(1, min(wanted, capacity // _LEAST_KEYS_PER_SPLIT, _MOST_SPLITS))


@functools.cache
def processors(device: torch.device) -> int:
    """Multiprocessors of a GPU; 1 where nothing runs in parallel."""
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count
