# SPDX-License-Identifier: Apache-2.0
"""Paged keys and values as views of the platform's pages."""

from dataclasses import dataclass, field
from typing import Any

import torch

# Slots, or elements of a head, beside each other in a row of an AMX tile; and how many elements of
# one slot, or slots of one element, stand together there.
_AMX_ROW, _AMX_PAIR = 16, 2


@dataclass
class PagedKV:
    """One layer's committed K/V: views of the platform's pages, in whatever order it packs them.

    `key`, `value: [blocks, Hk, block_size, K]`, any strides. vLLM's CPU backend, for one, stores K
    transposed inside a block: `key.stride(2) == 1` and `key.stride(3) == block_size`.

    Or, `in_amx_tiles`, bfloat16 as vLLM's CPU backend packs it for AMX (`of_amx_tiles`), where slot
    and element are each split in two: `key: [blocks, Hk, block_size / 16, 16, K / 2, 2]`,
    `value: [blocks, Hk, block_size / 2, 2, K / 16, 16]`.
    """

    key: torch.Tensor
    value: torch.Tensor
    # blocks, Hk, block_size, K
    shape: tuple[int, int, int, int] = field(init=False)
    in_amx_tiles: bool = field(init=False)

    def __post_init__(self) -> None:
        assert self.key.dtype == self.value.dtype, (self.key.dtype, self.value.dtype)
        self.in_amx_tiles = self.key.dim() == 6
        if not self.in_amx_tiles:
            assert self.key.shape == self.value.shape, (self.key.shape, self.value.shape)
            blocks, heads, block_size, head_size = self.key.shape
            self.shape = (blocks, heads, block_size, head_size)
            return
        blocks, heads, groups, row, pairs, pair = self.key.shape
        self.shape = (blocks, heads, groups * row, pairs * pair)
        assert self.key.dtype == torch.bfloat16, self.key.dtype
        tiles = _amx_tiles(*self.shape[2:])
        for view, (shape, strides) in zip((self.key, self.value), tiles, strict=True):
            assert view.shape == (blocks, heads, *shape), view.shape
            assert view.stride()[2:] == strides, view.stride()

    @classmethod
    def of_amx_tiles(cls, cache: torch.Tensor) -> "PagedKV":
        """Views of `cache: [blocks, Hk, block_size, 2K]` bfloat16, a block and head in one piece.

        Such a piece holds the keys, then the values. Element d of slot s of a key lies at
        `(s // 16) * 16 * K + (d // 2) * 32 + (s % 16) * 2 + d % 2`, of a value at
        `(d // 16) * 16 * block_size + (s // 2) * 32 + (d % 16) * 2 + s % 2`; so block_size is a
        multiple of 16 and K of 16. Source: csrc/cpu/cpu_attn_amx.hpp of vLLM.
        """
        blocks, heads, block_size, width = cache.shape
        head_size = width // 2
        assert block_size % _AMX_ROW == 0 and head_size % _AMX_ROW == 0, cache.shape
        assert cache.stride()[2:] == (width, 1), cache.stride()
        key, value = (
            cache.as_strided(
                (blocks, heads, *shape),
                (*cache.stride()[:2], *strides),
                cache.storage_offset() + behind,
            )
            for (shape, strides), behind in zip(
                _amx_tiles(block_size, head_size), (0, block_size * head_size), strict=True
            )
        )
        return cls(key, value)

    def read(self, blocks: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of `blocks`, an index of the first dimension: `[..., block_size, K]`."""
        key, value = self.key[blocks], self.value[blocks]
        if self.in_amx_tiles:
            key, value = (x.flatten(-4, -3).flatten(-2, -1) for x in (key, value))
        return key, value


def pages_of(start: int, end: int, block_size: int) -> slice:
    """Which entries of a block table have the pages of keys `start .. end`."""
    return slice(start // block_size, -(-end // block_size) if start < end else 0)


def _amx_tiles(block_size: int, head_size: int) -> tuple[Any, Any]:
    """Shape and strides of a block's keys and of its values: slot in two parts, element in two."""
    row, pair = _AMX_ROW, _AMX_PAIR
    key_shape = (block_size // row, row, head_size // pair, pair)
    key_strides = (row * head_size, pair, row * pair, 1)
    value_shape = (block_size // pair, pair, head_size // row, row)
    value_strides = (row * pair, 1, row * block_size, pair)
    return (key_shape, key_strides), (value_shape, value_strides)
