# SPDX-License-Identifier: Apache-2.0
"""The layers that one commit writes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from vllm_eagle_pangu.kernels.tree_attention.pages import PagedKV


@dataclass
class CommitLayers:
    """Scratch and pages of the L layers of a KV cache group; made once, when the cache is.

    `keys`, `values`: L scratches `[S, Hk, K]`, one shape, dtype and strides for all, elements of a
    head adjacent; `pages`: L pairs of one shape, dtype and strides.
    """

    keys: Sequence[torch.Tensor]
    values: Sequence[torch.Tensor]
    pages: Sequence[PagedKV]
    # [L, 4] int64: addresses of key scratch, value scratch, key pages, value pages
    addresses: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        scratches = [*self.keys, *self.values]
        assert scratches, "commit: no layers"
        assert len(self.keys) == len(self.values) == len(self.pages), "commit: counts differ"
        assert _alike(scratches), "commit: scratches differ in shape, dtype or strides"
        assert scratches[0].stride(2) == 1, "commit: elements of a scratch's head are not adjacent"
        for side in ("key", "value"):
            pages = [getattr(pair, side) for pair in self.pages]
            assert _alike(pages), f"commit: {side} pages differ in shape, dtype or strides"
        _, heads, _, head_size = self.pages[0].shape
        fits = (heads, head_size) == scratches[0].shape[1:]
        assert fits, "commit: pages have other heads than the scratch"
        rows = [
            [key.data_ptr(), value.data_ptr(), pages.key.data_ptr(), pages.value.data_ptr()]
            for key, value, pages in zip(self.keys, self.values, self.pages, strict=True)
        ]
        self.addresses = torch.tensor(rows, dtype=torch.int64, device=self.keys[0].device)

    @classmethod
    def by_layout(
        cls,
        keys: Sequence[torch.Tensor],
        values: Sequence[torch.Tensor],
        pages: Sequence[PagedKV],
    ) -> list["CommitLayers"]:
        """Any layers, as one instance for each layout among them: a launch each."""
        layouts: dict[Any, list[int]] = {}
        for index, (key, value, pair) in enumerate(zip(keys, values, pages, strict=True)):
            tensors = (key, value, pair.key, pair.value)
            layouts.setdefault(tuple(map(_layout, tensors)), []).append(index)
        return [
            cls([keys[i] for i in alike], [values[i] for i in alike], [pages[i] for i in alike])
            for alike in layouts.values()
        ]

    def check_rows(self, slots: torch.Tensor) -> None:
        """Assert that there is a scratch row for each of `slots: [S]`."""
        assert slots.shape[0] <= self.keys[0].shape[0], (slots.shape, self.keys[0].shape)


def _alike(tensors: list[torch.Tensor]) -> bool:
    return len(set(map(_layout, tensors))) == 1


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, tensor.stride()
