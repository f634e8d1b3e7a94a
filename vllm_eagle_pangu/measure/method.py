# SPDX-License-Identifier: Apache-2.0
"""Ways to decode: plain, with vLLM's own eagle3 chains, with this plugin's chains and trees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm_eagle_pangu.config import HOST_METHOD, METHOD
from vllm_eagle_pangu.core.shape import TreeShape


@dataclass(frozen=True)
class Method:
    """`kind`: plain, chain (vLLM's own), own chain, or tree.

    `length`: K of a chain, or M of a tree without a `shape`, whose W and D are the defaults;
    `window`: of this plugin's drafter, None for all of the context.
    """

    kind: str
    length: int = 0
    shape: TreeShape | None = None
    window: int | None = None

    @property
    def name(self) -> str:
        """In records and of files."""
        if self.shape is not None and self.kind == "tree":
            end = "" if self.window is None else f"-window-{self.window}"
            return f"tree-{self.shape.width}-{self.shape.depth}-{self.shape.nodes}{end}"
        return self.kind.replace(" ", "-") + (f"-{self.length}" if self.length else "")

    @property
    def title(self) -> str:
        """In the tuner's sentences and tables."""
        if self.shape is not None and self.kind == "tree":
            return f"tree W={self.shape.width} D={self.shape.depth} M={self.shape.nodes}"
        return {"chain": f"eagle3 K={self.length}", "own chain": f"chain {self.length}"}.get(
            self.kind, self.kind
        )

    @property
    def is_chain(self) -> bool:
        """Whether it drafts one token per position, here or in vLLM's own drafter."""
        return self.kind.endswith("chain")

    @property
    def nodes(self) -> int:
        """Drafted tokens that the target checks per step: K, M, 0 for plain decoding."""
        return self.length if self.shape is None else self.shape.nodes

    def speculative_config(self, head: str, trace_dir: str | None = None) -> dict[str, Any] | None:
        """What to give vLLM, None for plain decoding; traces only for trees."""
        if self.kind == "plain":
            return None
        method = HOST_METHOD if self.kind == "chain" else METHOD
        config = {"method": method, "model": head, "num_speculative_tokens": self.nodes}
        if self.kind == "own chain":
            config["tree_policy"] = "chain"
        elif self.shape is not None:
            config |= {"tree_width": self.shape.width, "tree_depth": self.shape.depth}
            config |= {} if self.window is None else {"drafter_window": self.window}
            config |= {} if trace_dir is None else {"trace_dir": trace_dir}
        return config


PLAIN = Method("plain")


def chain(length: int) -> Method:
    """vLLM's own."""
    return Method("chain", length)


def own_chain(length: int) -> Method:
    """This plugin's: also where vLLM's own does not sample."""
    return Method("own chain", length, TreeShape(1, length, length))


def tree(shape: TreeShape | tuple[int, ...], window: int | None = None) -> Method:
    shape = shape if isinstance(shape, TreeShape) else TreeShape(*shape)
    return Method("tree", shape=shape, window=window)


def of_shape(shape: TreeShape) -> Method:
    """A tree of this plugin's; one that is 1 wide is a chain."""
    return own_chain(shape.depth) if shape.width == 1 else tree(shape)
