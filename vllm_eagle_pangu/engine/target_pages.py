# SPDX-License-Identifier: Apache-2.0
"""The target's attention layers: their scratch, their pages, and what a commit writes there."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import torch
from vllm.model_executor.layers.attention import Attention

from vllm_eagle_pangu.core.ops import Ops
from vllm_eagle_pangu.engine.attention import refuse_window
from vllm_eagle_pangu.kernels.kv_commit import CommitLayers, assert_written_once
from vllm_eagle_pangu.step.rows import VerifyRows

if TYPE_CHECKING:
    from vllm.v1.attention.backend import AttentionMetadata
    from vllm.v1.kv_cache_interface import KVCacheGroupSpec


class TargetPages:
    """`step.commit.Pages`, through vLLM's own cache write or, once tabulated, one launch for all.

    `layers`: the target's attention layers, each with its KV cache group.
    """

    def __init__(self, ops: Ops, check: bool) -> None:
        self.ops = ops
        self.check = check
        self.layers: list[tuple[int, Attention]] = []
        self.tables: dict[int, list[CommitLayers]] = {}
        # Whether the layers look for trees in their metadata.
        self._attends_trees = True

    def take(self, groups: Iterable["KVCacheGroupSpec"], layers: Mapping[str, Attention]) -> None:
        """Vllm's KV cache `groups` are there; `layers` are the target's, by name.

        Raises ValueError for a layer with a window.
        """
        self.layers = [
            (group, layers[name])
            for group, spec in enumerate(groups)
            for name in spec.layer_names
            if name in layers
        ]
        for _, layer in self.layers:
            refuse_window(layer)

    def tabulate(self) -> None:
        """By KV cache group, one launch for all layers of one layout."""
        groups: dict[int, list[Attention]] = {}
        for group, layer in self.layers:
            groups.setdefault(group, []).append(layer)
        self.tables = {
            group: CommitLayers.by_layout(
                keys=[layer.impl.scratch.key for layer in layers],
                values=[layer.impl.scratch.value for layer in layers],
                pages=[layer.impl.pages(layer, layer.kv_cache) for layer in layers],
            )
            for group, layers in groups.items()
        }

    def forget(self) -> None:
        """Before vLLM frees or replaces its KV cache."""
        self.tables = {}

    def attach(
        self, metadata: Mapping[str, "AttentionMetadata"], rows: Mapping[int, VerifyRows]
    ) -> None:
        """Give the layers' `metadata`, by name, the rows of their groups."""
        self._attend_trees(True)
        for group, layer in self.layers:
            metadata[layer.layer_name].tree = rows[group]

    def attach_none(self) -> None:
        """The batch has no trees: the layers need not look for any."""
        self._attend_trees(False)

    def _attend_trees(self, may_come: bool) -> None:
        if may_come != self._attends_trees:
            self._attends_trees = may_come
            for _, layer in self.layers:
                layer.impl.attend_trees(may_come)

    def write(self, slots: Mapping[int, torch.Tensor]) -> None:
        """See `Pages`."""
        for group, tables in self.tables.items():
            for layers in tables:
                self.ops.commit_pages(layers, slots[group])
        if self.tables:
            return
        for group, layer in self.layers:
            if self.check:
                assert_written_once(slots[group])
            scratch, count = layer.impl.scratch, slots[group].shape[0]
            key, value = scratch.key[:count], scratch.value[:count]
            layer.impl.do_kv_cache_update(layer, key, value, layer.kv_cache, slots[group])
