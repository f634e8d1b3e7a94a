# SPDX-License-Identifier: Apache-2.0
"""Ways to decode: plain, with vLLM's own eagle3 chains, with this plugin's chains and trees."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from vllm_eagle_pangu.config import HOST_METHOD, METHOD
from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.engine.head_fit import tensor_shapes
from vllm_eagle_pangu.engine.head_parallel import KEY, MASK_HIDDEN

# From, to how many requests, and with chains of how many tokens: vLLM's
# `num_speculative_tokens_per_batch_size`.
Schedule: TypeAlias = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class Method:
    """`kind`: plain, chain or scheduled chain (vLLM's own), own chain, tree or adaptive.

    `length`: K of a chain, or M of a tree without a `shape`, whose W and D are the defaults;
    `window`: of this plugin's drafter, None for all of the context; `schedule`: K by batch size.
    """

    kind: str
    length: int = 0
    shape: TreeShape | None = None
    window: int | None = None
    schedule: Schedule = ()

    @property
    def name(self) -> str:
        """In records, tables and files."""
        if self.shape is not None and self.kind != "own chain":
            end = "" if self.window is None else f"-window-{self.window}"
            return f"{self.kind}-{self.shape.width}-{self.shape.depth}-{self.shape.nodes}{end}"
        return self.kind.replace(" ", "-") + (f"-{self.length}" if self.length else "")

    @property
    def is_vllms(self) -> bool:
        """Whether vLLM's own drafter drafts."""
        return self.kind in ("chain", "scheduled chain")

    @property
    def nodes(self) -> int:
        """Drafted tokens that the target checks per step: K, M, 0 for plain decoding."""
        return self.length if self.shape is None else self.shape.nodes

    def speculative_config(self, head: str, trace_dir: str | None = None) -> dict[str, Any] | None:
        """What to give vLLM, None for plain decoding; traces only for trees."""
        if self.kind == "plain":
            return None
        method = HOST_METHOD if self.is_vllms else METHOD
        config = {"method": method, "model": head, "num_speculative_tokens": self.nodes}
        if self.is_vllms and MASK_HIDDEN in tensor_shapes(Path(head)):
            # vLLM has to be told.
            config[KEY] = True
        if self.schedule:
            config["num_speculative_tokens_per_batch_size"] = [list(part) for part in self.schedule]
        elif self.kind == "own chain":
            config["tree_policy"] = "chain"
        elif self.shape is not None:
            config |= {"tree_policy": "adaptive"} if self.kind == "adaptive" else {}
            config |= {"tree_width": self.shape.width, "tree_depth": self.shape.depth}
            config |= {} if self.window is None else {"drafter_window": self.window}
            config |= {} if trace_dir is None else {"trace_dir": trace_dir}
        return config


PLAIN = Method("plain")


def chain(length: int) -> Method:
    """vLLM's own."""
    return Method("chain", length)


def scheduled_chain(schedule: Schedule) -> Method:
    """vLLM's own, as long as the batch allows."""
    return Method("scheduled chain", max(length for *_, length in schedule), schedule=schedule)


def own_chain(length: int) -> Method:
    """This plugin's: also where vLLM's own does not sample."""
    return Method("own chain", length, TreeShape(1, length, length))


def tree(shape: TreeShape | tuple[int, ...], window: int | None = None) -> Method:
    shape = shape if isinstance(shape, TreeShape) else TreeShape(*shape)
    return Method("tree", shape=shape, window=window)


def adaptive(shape: TreeShape | tuple[int, ...]) -> Method:
    """Trees up to a shape, as large as pays."""
    return replace(tree(shape), kind="adaptive")
