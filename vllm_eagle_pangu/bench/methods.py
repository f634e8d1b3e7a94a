# SPDX-License-Identifier: Apache-2.0
"""What is compared: plain decoding, vLLM's own eagle3 chains, this plugin's trees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm_eagle_pangu.bench.config import Shape
from vllm_eagle_pangu.config import HOST_METHOD, METHOD


@dataclass(frozen=True)
class Method:
    """A way to decode; two of the same name decode alike."""

    name: str
    kind: str
    nodes: int = 0
    """Drafted tokens that the target checks per step: K, M, 0 for plain decoding."""
    keys: tuple[tuple[str, Any], ...] = ()

    def speculative(self, head: str, trace_dir: str | None = None) -> dict[str, Any] | None:
        """The value of vLLM's `speculative_config`; traces only for trees."""
        if self.kind == "plain":
            return None
        config = {
            "method": HOST_METHOD if self.kind == "chain" else METHOD,
            "model": head,
            "num_speculative_tokens": self.nodes,
            **dict(self.keys),
        }
        if trace_dir is not None and self.kind == "tree":
            config["trace_dir"] = trace_dir
        return config


PLAIN = Method("plain", "plain")


def chain(length: int) -> Method:
    return Method(f"chain-{length}", "chain", length)


def own_chain(length: int) -> Method:
    """This plugin's chain: for platforms on which vLLM's own does not sample."""
    return Method(f"own-chain-{length}", "own chain", length, (("tree_policy", "chain"),))


def tree(shape: Shape, window: int | None = None) -> Method:
    """A tree of (W, D, M), its drafter seeing the last `window` tokens, None for all."""
    width, depth, nodes = shape
    keys: tuple[tuple[str, Any], ...] = (("tree_width", width), ("tree_depth", depth))
    name = f"tree-{width}-{depth}-{nodes}"
    if window is not None:
        keys, name = (*keys, ("drafter_window", window)), f"{name}-window-{window}"
    return Method(name, "tree", nodes, keys)
