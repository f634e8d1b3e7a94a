# SPDX-License-Identifier: Apache-2.0
"""A committed KV cache on Hugging Face's Cache API, and the two ways of committing to it.

Source: branch and commit cache manager of EAGLE-Pangu.
"""

from __future__ import annotations

import torch
from transformers import DynamicCache

from vllm_eagle_pangu.env import fast_cache_reorder


class CommittedCache:
    """K/V of the committed tokens of one sequence, per layer `[1, Hk, t, K]`.

    Forward passes run on copies (`branch`); only `commit_length` and `commit_path` change the
    committed state. `fast_commits` and `full_commits` count how `commit_path` went.

    Raises:
        ValueError: EA_FAST_CACHE_REORDER is set to something else than 0 or 1 (default 1).
    """

    def __init__(self) -> None:
        self._cache = DynamicCache()
        self._fast = fast_cache_reorder()
        self.fast_commits = 0
        self.full_commits = 0

    @property
    def length(self) -> int:
        """t, the number of committed tokens."""
        return self._cache.get_seq_length()

    def layers(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Committed (key, value) of each layer, `[1, Hk, t, K]` each."""
        return [(layer.keys, layer.values) for layer in self._cache.layers]

    def branch(self, n: int) -> DynamicCache:
        """A cache of batch size n whose rows are copies of the committed one."""
        copy = DynamicCache()
        for index, (key, value) in enumerate(self.layers()):
            copy.update(key.repeat(n, 1, 1, 1), value.repeat(n, 1, 1, 1), index)
        return copy

    def commit_length(self, branch: DynamicCache, row: int, length: int) -> None:
        """Make the first `length` positions of row `row` of `branch` the committed state."""
        assert self.length <= length <= branch.get_seq_length(), (length, self.length)
        self._replace(
            [
                (layer.keys[row : row + 1, :, :length], layer.values[row : row + 1, :, :length])
                for layer in branch.layers
            ]
        )

    def commit_path(self, tree: DynamicCache, path: list[int]) -> None:
        """Commit the tree rows `path`, in this order; the rest of the tree is dropped.

        `tree` is a `branch(1)` to which a forward pass has appended the tree's rows; row k of
        the tree is at position t + k.

        Where the tree still holds the committed prefix, that is kept and only the path's rows
        are copied. Otherwise all of the tree's positions are gathered.
        """
        start = self.length
        if self._fast and self._shares_prefix(tree):
            self.fast_commits += 1
            rows = torch.tensor(path) + start
            layers = []
            for (key, value), layer in zip(self.layers(), tree.layers, strict=True):
                new_key = layer.keys.index_select(2, rows)
                new_value = layer.values.index_select(2, rows)
                layers.append((torch.cat([key, new_key], 2), torch.cat([value, new_value], 2)))
        else:
            self.full_commits += 1
            rows = torch.tensor([*range(start), *(start + row for row in path)])
            layers = [
                (layer.keys.index_select(2, rows), layer.values.index_select(2, rows))
                for layer in tree.layers
            ]
        self._replace(layers)

    def _shares_prefix(self, tree: DynamicCache) -> bool:
        committed = self.layers()
        if len(committed) != len(tree.layers) or tree.get_seq_length() < self.length:
            return False
        return all(
            torch.equal(layer.keys[:, :, : self.length], key)
            and torch.equal(layer.values[:, :, : self.length], value)
            for (key, value), layer in zip(committed, tree.layers, strict=True)
        )

    def _replace(self, layers: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        self._cache = DynamicCache()
        for index, (key, value) in enumerate(layers):
            self._cache.update(key.clone(), value.clone(), index)
