# SPDX-License-Identifier: Apache-2.0
"""Paged keys and values as plain strided views."""

from dataclasses import dataclass

import torch


@dataclass
class PagedKV:
    """One layer's committed K/V: views of the platform's pages, in whatever order it packs them.

    `key`, `value: [blocks, Hk, block_size, K]`, any strides. vLLM's CPU backend, for one, stores K
    transposed inside a block: `key.stride(2) == 1` and `key.stride(3) == block_size`.
    """

    key: torch.Tensor
    value: torch.Tensor


def pages_of(start: int, end: int, block_size: int) -> slice:
    """Which entries of a block table have the pages of keys `start .. end`."""
    return slice(start // block_size, -(-end // block_size) if start < end else 0)
