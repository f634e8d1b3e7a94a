# SPDX-License-Identifier: Apache-2.0
"""A committed KV cache on Hugging Face's Cache API, and the two ways of committing to it.

Source: branch and commit cache manager of EAGLE-Pangu.
"""

import os

import torch
from transformers import DynamicCache

from vllm_eagle_pangu.config import refusal

# 0: every commit copies the whole cache.
FAST_CACHE_REORDER = "EA_FAST_CACHE_REORDER"


class CommittedCache:
    """K/V of the committed tokens of one sequence: `layers`, a pair of `[1, Hk, t, K]` for each.

    Forward passes run on copies (`branch`); only `commit_length` and `commit_path` change the
    committed state. `fast_commits` and `full_commits` count how `commit_path` went.

    Raises:
        ValueError: EA_FAST_CACHE_REORDER is set to something else than 0 or 1 (default 1).
    """

    def __init__(self) -> None:
        self.layers: list[tuple[torch.Tensor, torch.Tensor]] = []
        setting = os.environ.get(FAST_CACHE_REORDER, "1")
        if setting not in ("0", "1"):
            raise refusal(FAST_CACHE_REORDER, setting, "must be 0 or 1", "set it to 0 or 1")
        self._fast = setting == "1"
        self.fast_commits = 0
        self.full_commits = 0

    @property
    def length(self) -> int:
        """t, the number of committed tokens."""
        return self.layers[0][0].shape[2] if self.layers else 0

    def branch(self, n: int) -> DynamicCache:
        """A cache of batch size n whose rows are copies of the committed one."""
        return DynamicCache([(k.repeat(n, 1, 1, 1), v.repeat(n, 1, 1, 1)) for k, v in self.layers])

    def commit_length(self, branch: DynamicCache, row: int, length: int) -> None:
        """Make the first `length` positions of row `row` of `branch` the committed state."""
        assert self.length <= length <= branch.get_seq_length(), (length, self.length)
        part = (slice(row, row + 1), slice(None), slice(length))
        self.layers = [(x.keys[part].clone(), x.values[part].clone()) for x in branch.layers]

    def commit_path(self, tree: DynamicCache, path: list[int]) -> None:
        """Commit the tree rows `path`, in this order; the rest of the tree is dropped.

        `tree` is a `branch(1)` to which a forward pass has appended the tree's rows; row k of
        the tree is at position t + k.

        Where the tree still holds the committed prefix, that is kept and only the path's rows
        are copied. Otherwise the prefix is copied from the tree, too.
        """
        fast = self._fast and self._shares_prefix(tree)
        rows, t = torch.tensor(path) + self.length, self.length
        held = [(x.keys, x.values) for x in tree.layers]
        prefix = self.layers if fast else [(k[:, :, :t], v[:, :, :t]) for k, v in held]
        self.layers = [
            (torch.cat([k, keys[:, :, rows]], 2), torch.cat([v, values[:, :, rows]], 2))
            for (k, v), (keys, values) in zip(prefix, held, strict=True)
        ]
        self.fast_commits += fast
        self.full_commits += not fast

    def _shares_prefix(self, tree: DynamicCache) -> bool:
        if len(self.layers) != len(tree.layers) or tree.get_seq_length() < self.length:
            return False
        return all(
            torch.equal(layer.keys[:, :, : self.length], key)
            and torch.equal(layer.values[:, :, : self.length], value)
            for (key, value), layer in zip(self.layers, tree.layers, strict=True)
        )
