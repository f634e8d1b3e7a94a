# SPDX-License-Identifier: Apache-2.0
"""What the user may say about trees in `speculative_config`, checked."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from vllm_eagle_pangu.checked import CHECKED, Count, checked, refusal, unknown_key
from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.env import TRACE_DIR

if TYPE_CHECKING:
    from vllm_eagle_pangu.core.ops import Ops
    from vllm_eagle_pangu.core.policy import TreePolicy
    from vllm_eagle_pangu.tracing.config import TraceConfig

METHOD = "eagle_pangu"
# Inside vLLM the method behaves as this one: auxiliary hidden states, lookahead slots, KV groups.
HOST_METHOD = "eagle3"
# The attribute of vLLM's SpeculativeConfig that carries the TreeConfig to the workers.
ATTRIBUTE = "eagle_pangu"
# vLLM's MAX_SPEC_LEN: its samplers and metrics are sized for at most this many drafts.
MAX_NODES = 128

# Those that name a shape, or who chooses it. Who says none of these leaves the tree to the policy.
TREE_KEYS = ("num_speculative_tokens", "tree_depth", "tree_width", "tree_policy")

# Of a run's trace lines; less than the least would not hold the lines of one wide tree.
DEFAULT_MAX_BYTES = 256 * 2**20
LEAST_MAX_BYTES = 2**16


@dataclass(frozen=True, config=CHECKED)
class TreeConfig:
    """The tree keys of `speculative_config`; see docs/configuration.md for what each one does.

    Raises ValueError for a value of the wrong type or range, or a budget the tree cannot hold.
    """

    num_speculative_tokens: Annotated[int, Field(ge=1, le=MAX_NODES)] = 16
    tree_depth: Count = 5
    tree_width: Count = 4
    tree_policy: Literal["dynamic", "chain", "adaptive"] = "dynamic"
    verify_mode: Literal["performance", "reference"] = "performance"
    drafter_window: Count | None = None
    parallel_drafting: bool | None = None
    trace_dir: Annotated[str, Field(min_length=1)] | None = None
    trace_sample_rate: Annotated[float, Field(gt=0, le=1)] = 1.0
    trace_max_bytes: Annotated[int, Field(ge=LEAST_MAX_BYTES)] = DEFAULT_MAX_BYTES

    def __post_init__(self) -> None:
        if self.tree_policy == "chain":
            self._check_chain()
        self._check_budget()

    @classmethod
    def split(
        cls, spec: Mapping[str, Any], host_keys: Iterable[str], adapts: bool = False
    ) -> tuple["TreeConfig", dict[str, Any]]:
        """Divide a user's `speculative_config` into our part and vLLM's.

        `host_keys` are the keys that vLLM's SpeculativeConfig knows. `adapts`: trees follow latency
        where the user says nothing of them. Returns the checked tree configuration and the
        dictionary to build vLLM's SpeculativeConfig from.
        """
        spec = {key.replace("-", "_"): value for key, value in spec.items()}
        own = {field.name for field in fields(cls)}
        host = set(host_keys) - own
        for key, value in spec.items():
            if key not in own | host:
                raise unknown_key(key, value, own | host)
        if not isinstance(spec.get("model"), str) or not spec["model"]:
            raise refusal(
                "model",
                spec.get("model"),
                "an EAGLE-3 head is needed",
                'set "model" in speculative_config to the folder or hub name of a head '
                "trained for the target",
            )
        given = {key: value for key, value in spec.items() if key in own and value is not None}
        if adapts and given.keys().isdisjoint(TREE_KEYS):
            given["tree_policy"] = "adaptive"
        tree: TreeConfig = checked(cls, _defaults(given))
        rest = {key: value for key, value in spec.items() if key in host}
        rest["method"] = HOST_METHOD
        rest["num_speculative_tokens"] = tree.num_speculative_tokens
        return tree, rest

    def shape(self) -> TreeShape:
        """The largest tree of a step: W wide, D deep, M nodes (never deeper than M)."""
        depth = min(self.tree_depth, self.num_speculative_tokens)
        return TreeShape(self.tree_width, depth, self.num_speculative_tokens)

    def policy(self, ops: "Ops", on_host: bool = True, sizes: Sequence[int] = ()) -> "TreePolicy":
        """The object that chooses each tree's shape: see `core.adaptive`."""
        from vllm_eagle_pangu.core.adaptive import AdaptiveShapes
        from vllm_eagle_pangu.core.policy import FixedShape

        if self.tree_policy == "adaptive":
            return AdaptiveShapes(self.shape(), ops, on_host, sizes)
        return FixedShape(self.shape())

    def trace(self) -> "TraceConfig | None":
        """Where and how much to trace, None without traces; EAGLE_PANGU_TRACE_DIR wins."""
        from vllm_eagle_pangu.tracing.config import TraceConfig

        folder = os.environ.get(TRACE_DIR) or self.trace_dir
        if folder is None:
            return None
        return TraceConfig(folder, self.trace_sample_rate, self.trace_max_bytes)

    def _check_chain(self) -> None:
        length = self.num_speculative_tokens
        for key, of_a_chain, problem in (
            ("tree_width", 1, "a chain is one node wide"),
            ("tree_depth", length, f"a chain of num_speculative_tokens={length} is as deep"),
        ):
            if (value := getattr(self, key)) != of_a_chain:
                mend = f'remove "{key}", or set "tree_policy" to "dynamic"'
                raise refusal(key, value, problem, mend)

    def _check_budget(self) -> None:
        M, W, D = self.num_speculative_tokens, self.tree_width, self.tree_depth
        capacity = TreeShape(W, D, 1).capacity
        if capacity < M:
            raise refusal(
                "num_speculative_tokens",
                M,
                f"a tree with tree_width={W} and tree_depth={D} holds at most {capacity} nodes "
                "(W + (D-1)*W*W)",
                f'set "num_speculative_tokens" to {capacity} or less, '
                'or raise "tree_width" or "tree_depth"',
            )


def tree_config(vllm_config: Any) -> TreeConfig | None:
    """The tree configuration that a `VllmConfig` carries; None without the method."""
    return getattr(vllm_config.speculative_config, ATTRIBUTE, None)


def _defaults(given: dict[str, Any]) -> dict[str, Any]:
    """Fill in what the user left out so that it fits what the user said.

    Values of the wrong type pass through: TreeConfig names them.
    """
    if given.get("tree_policy") == "chain":
        length = given.get("num_speculative_tokens", given.get("tree_depth", TreeConfig.tree_depth))
        return {"num_speculative_tokens": length, "tree_depth": length, "tree_width": 1} | given
    width = given.get("tree_width", TreeConfig.tree_width)
    depth = given.get("tree_depth", TreeConfig.tree_depth)
    if "num_speculative_tokens" in given or not (_is_positive(width) and _is_positive(depth)):
        return given
    nodes = min(TreeConfig.num_speculative_tokens, TreeShape(width, depth, 1).capacity)
    return {"num_speculative_tokens": nodes} | given


def _is_positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
