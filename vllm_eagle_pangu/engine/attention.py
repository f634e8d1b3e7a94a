# SPDX-License-Identifier: Apache-2.0
"""Tree rows on top of a platform's own attention backend.

Rows of requests that carry a tree are attended by `kernels.tree_attention`; every other row goes
through vLLM's own op unchanged.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from vllm_eagle_pangu.kernels.tree_attention import PagedKV, tree_attention
from vllm_eagle_pangu.step.rows import LayerScratch, TreeRows

if TYPE_CHECKING:
    from vllm.model_executor.layers.attention import Attention
    from vllm.v1.attention.backend import (
        AttentionBackend,
        AttentionImpl,
        AttentionMetadata,
        AttentionMetadataBuilder,
    )
else:
    # A platform's classes stand behind the mixins.
    AttentionBackend = AttentionImpl = AttentionMetadataBuilder = object


class TreeBackendMixin(AttentionBackend):
    """Registered over a backend of vLLM's when the method is chosen; made of our two classes."""

    impl: ClassVar[type]
    builder: ClassVar[type]

    @classmethod
    def get_impl_cls(cls) -> type:
        return cls.impl

    @classmethod
    def get_builder_cls(cls) -> type:
        return cls.builder


class TreeBuilderMixin(AttentionMetadataBuilder):
    """Gives vLLM's metadata the field `tree`; None in a batch without trees."""

    def build(self, *args: Any, **kwargs: Any) -> Any:
        """See `AttentionMetadataBuilder.build`; the runner attaches the tree afterwards."""
        metadata = super().build(*args, **kwargs)
        metadata.tree = None
        return metadata


class TreeAttentionMixin(AttentionImpl):
    """Per layer: the platform's attention, tree attention, and the layer's scratch K/V."""

    scale: float
    # The runner gives each layer its own, once the model is loaded.
    scratch: LayerScratch

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        refuse_unsupported_scores(self)
        self.window = _window(self)
        # The runner binds the one that the engine chose.
        self.attend: Callable[..., None] = tree_attention
        self._pages: tuple[int, PagedKV] | None = None

    def page_views(self, layer: "Attention", kv_cache: torch.Tensor) -> PagedKV:
        """Key and value views of `layer`'s cache tensor, or of another one laid out as it is."""
        raise NotImplementedError

    def pages(self, layer: "Attention", kv_cache: torch.Tensor) -> PagedKV:
        """`page_views`, made once per cache: a tensor or, on Ascend, a pair, known by its first."""
        first = kv_cache if isinstance(kv_cache, torch.Tensor) else kv_cache[0]
        if self._pages is None or self._pages[0] != first.data_ptr():
            self._pages = (first.data_ptr(), self.page_views(layer, kv_cache))
        return self._pages[1]

    def forget_pages(self) -> None:
        """Drop the views, which keep the memory of a freed cache."""
        self._pages = None

    def attend_trees(self, may_come: bool) -> None:
        """Whether batches may have trees from now on; else vLLM's own `forward` is called as if by
        itself: one call more for each layer is felt where a plain step takes milliseconds."""
        if may_come:
            self.__dict__.pop("forward", None)
        else:
            self.__dict__["forward"] = super().forward

    def forward(
        self,
        layer: "Attention",
        query: torch.Tensor,  # [N, H, K]; N may be padded behind the batch's rows
        key: torch.Tensor,  # [N, Hk, K]
        value: torch.Tensor,  # [N, Hk, K]
        kv_cache: torch.Tensor,
        attn_metadata: "AttentionMetadata | None",
        output: torch.Tensor,  # [N, H, K]
        **scales: torch.Tensor | None,  # of a quantized output
    ) -> torch.Tensor:
        """Same contract as `AttentionImpl.forward`."""
        rows: TreeRows | None = None if attn_metadata is None else attn_metadata.tree
        if rows is None or not rows.covers_batch:
            # Tree rows come out wrong here and are overwritten below: cheaper than splitting the
            # batch, which only a step with a prefill in it would need.
            super().forward(layer, query, key, value, kv_cache, attn_metadata, output, **scales)
        if rows is not None:
            key, value = rows.store(self.scratch, key, value)
            if self.window is not None:
                rows = rows.within(self.window)
            pages = self.pages(layer, kv_cache)
            self.attend(query, key, value, pages, rows, self.scale, output)
        return output


def refuse_unsupported_scores(impl: "AttentionImpl") -> None:
    """Tree attention computes plain scaled dot products; anything else would be silently wrong."""
    cache_dtype = str(impl.kv_cache_dtype)
    unsupported = {
        "attention sinks": impl.sinks is not None,
        f"logits soft cap {impl.logits_soft_cap}": bool(impl.logits_soft_cap),
        "ALiBi slopes": impl.alibi_slopes is not None,
        f"kv_cache_dtype={cache_dtype}": cache_dtype.startswith(("fp8", "int", "nvfp")),
        "KV shared between layers": impl.kv_sharing_target_layer_name is not None,
    }
    for what, present in unsupported.items():
        if present:
            raise ValueError(
                f"eagle_pangu: the model uses {what}, which tree attention does not support; "
                'use "method": "eagle3" for this model'
            )


def refuse_window(layer: "Attention") -> None:
    """For the target's layers: trees are verified against the whole context. Raises ValueError."""
    window = layer.impl.window
    if window is not None:
        raise ValueError(
            f"eagle_pangu: {layer.layer_name} uses a sliding window of {window}, which tree "
            'attention does not support in a target; use "method": "eagle3" for this model'
        )


def _window(impl: "AttentionImpl") -> int | None:
    """How many keys a query sees, itself included; None for all of them.

    The CPU's impl keeps -1 for none, the GPUs' (keys to the left, keys to the right), Ascend's
    what vLLM said.
    """
    window = impl.sliding_window
    if isinstance(window, tuple):
        window = window[0] + 1 if window[0] >= 0 else -1
    return window if window is not None and window > 0 else None
