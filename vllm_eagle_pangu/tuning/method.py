# SPDX-License-Identifier: Apache-2.0
"""Ways to decode: without drafts, with a chain, with a tree."""

from dataclasses import dataclass
from typing import Any

from vllm_eagle_pangu.config import METHOD
from vllm_eagle_pangu.core.shape import TreeShape


@dataclass(frozen=True)
class Method:
    """One row of the table. `shape` is None without a tree, `chain` K for vLLM's own eagle3."""

    name: str
    shape: TreeShape | None = None
    chain: int | None = None

    @property
    def is_chain(self) -> bool:
        """Whether it drafts one token per position, here or in vLLM's own drafter."""
        return self.chain is not None or (self.shape is not None and self.shape.width == 1)

    def speculative_config(self, head: str) -> dict[str, Any] | None:
        """What to give vLLM; None for plain decoding."""
        if self.chain is not None:
            return {"method": "eagle3", "model": head, "num_speculative_tokens": self.chain}
        if self.shape is None:
            return None
        config = {"method": METHOD, "model": head, "num_speculative_tokens": self.shape.nodes}
        if self.shape.width == 1:
            return config | {"tree_policy": "chain"}
        return config | {"tree_width": self.shape.width, "tree_depth": self.shape.depth}


PLAIN = Method("plain")


def tree(shape: TreeShape) -> Method:
    """A tree of this plugin's; one that is 1 wide is a chain."""
    if shape.width == 1:
        return Method(f"chain {shape.depth}", shape=shape)
    return Method(f"tree W={shape.width} D={shape.depth} M={shape.nodes}", shape=shape)


def vllm_chain(length: int) -> Method:
    """vLLM's own chain of `length` drafts."""
    return Method(f"eagle3 K={length}", chain=length)
