# SPDX-License-Identifier: Apache-2.0
"""The training YAML: frozen dataclasses, one per stage; unknown keys are refused.

A file has general keys and a section for each stage it runs:

    run_dir: runs/mine            # everything the run writes goes here
    seed: 0
    target_model: path/to/target  # or a `target:` section that trains one
    texts: ["notes/*.jsonl"]      # or a `corpus:` section that makes one
    generate: {samples: 4096}
    head: {max_minutes: 30}
"""

from __future__ import annotations

import dataclasses
import types
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

DEFAULT_PACKAGES = (
    "stdlib",
    "torch",
    "transformers",
    "vllm",
    "sympy",
    "networkx",
    "numpy",
    "pydantic",
    "aiohttp",
    "fastapi",
    "huggingface_hub",
    "pip",
    "setuptools",
    "rich",
    "pygments",
    "numba",
    "mypy",
    "hypothesis",
    "_pytest",
    "mpmath",
    "opentelemetry",
    "triton",
    "jinja2",
    "click",
    "httpx",
    "starlette",
    "packaging",
    "PIL",
    "supervisor",
)


@dataclass(frozen=True)
class CorpusConfig:
    """Stage `corpus`: Python files of installed packages, a BPE, the held-out part."""

    packages: tuple[str, ...] = DEFAULT_PACKAGES
    vocab_size: int = 6144
    max_length: int = 2048
    max_file_bytes: int = 150_000
    max_package_bytes: int = 2_000_000
    held_out_stdlib: int = 80
    """Of 1000 standard-library files, how many stay out of training."""
    held_out_packages: int = 15
    held_out_prompts: int = 128


@dataclass(frozen=True)
class TargetConfig:
    """Stage `target`: an openPangu-architecture model trained from nothing."""

    hidden_size: int = 384
    intermediate_size: int = 1024
    layers: int = 6
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 64
    max_positions: int = 2048
    rope_theta: float = 10000.0
    sequence_length: int = 512
    long_sequence_length: int = 1024
    long_from: float = 0.75
    """Progress from which windows have the long length."""
    tokens_per_step: int = 8192
    micro_batch_tokens: int = 4096
    matrix_lr: float = 0.02
    other_lr: float = 0.003
    warmup: float = 0.02
    hold: float = 0.3
    max_grad_norm: float = 1.0
    max_tokens: int | None = None
    max_minutes: float | None = None
    save_minutes: float = 5.0
    log_every: int = 10
    compile: bool = True


@dataclass(frozen=True)
class GenerateConfig:
    """Stage `generate`: the target continues snippets; batches cycle through the lists."""

    samples: int = 2560
    length: int = 512
    """Tokens of a sample, prompt included."""
    batch: int = 64
    temperatures: tuple[float, ...] = (0.0, 0.8)
    prompt_lengths: tuple[int, ...] = (32, 64, 128, 224)
    max_minutes: float | None = None
    """Stop early and keep the batches made so far."""


@dataclass(frozen=True)
class HeadConfig:
    """Stage `head`: an EAGLE-3 head trained with training-time test."""

    taps: tuple[int, ...]
    """Layer counts: tap k is the target's residual stream after k layers."""
    draft_vocab_size: int
    intermediate_size: int = 1024
    rollout_steps: int = 5
    step_decay: float = 0.8
    batch: int = 8
    corpus_share: float = 0.2
    """Share of rows that are plain corpus windows instead of the target's own outputs."""
    matrix_lr: float = 0.02
    other_lr: float = 0.002
    warmup: float = 0.02
    hold: float = 0.3
    max_tokens: int | None = None
    max_minutes: float | None = None
    save_minutes: float = 3.0
    log_every: int = 10
    compile: bool = True


@dataclass(frozen=True)
class TrainConfig:
    """A whole run; the sections that are present are its stages."""

    run_dir: str
    seed: int = 0
    threads: int | None = None
    device: str = "cpu"
    """Torch device of stages `generate` and `head`; a target is trained on the CPU."""
    target_model: str | None = None
    texts: tuple[str, ...] = ()
    corpus: CorpusConfig | None = None
    target: TargetConfig | None = None
    generate: GenerateConfig | None = None
    head: HeadConfig | None = None

    def __post_init__(self) -> None:
        if self.target is not None and self.target_model is not None:
            raise ValueError(
                f"target_model={self.target_model!r} and a target section are both given: "
                "keep target_model to use a model you have, or the section to train one"
            )
        if self.corpus is not None and self.texts:
            raise ValueError(
                f"texts={list(self.texts)} and a corpus section are both given: keep one of them"
            )


def load_config(path: Path) -> TrainConfig:
    """Read and check a training YAML.

    Raises:
        ValueError: an unknown or missing key, or a value of the wrong type.
    """
    content = yaml.safe_load(path.read_text())
    if not isinstance(content, dict):
        raise ValueError(f"{path.name}: expected keys and values, found {type(content).__name__}")
    config: TrainConfig = _build(TrainConfig, content, "")
    return config


def _build(kind: Any, content: dict[str, Any], prefix: str) -> Any:
    hints = typing.get_type_hints(kind)
    for key in content:
        if key not in hints:
            raise ValueError(
                f"unknown key {prefix + str(key)!r}: use one of {', '.join(sorted(hints))}"
            )
    for field in dataclasses.fields(kind):
        if field.default is dataclasses.MISSING and field.name not in content:
            raise ValueError(f"missing key {prefix + field.name!r}: set it")
    values = {key: _convert(hints[key], value, prefix + key) for key, value in content.items()}
    return kind(**values)


def _convert(hint: Any, value: Any, key: str) -> Any:
    if isinstance(hint, types.UnionType):
        inner = next(kind for kind in typing.get_args(hint) if kind is not type(None))
        if value is None:
            return None
        return _convert(inner, value, key)
    if dataclasses.is_dataclass(hint):
        if value is not None and not isinstance(value, dict):
            raise ValueError(f"{key}={value!r} must be a section of keys and values")
        return _build(hint, value or {}, key + ".")
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise ValueError(f"{key}={value!r} must be a list: write [{value}]")
        item = typing.get_args(hint)[0]
        return tuple(_convert(item, part, f"{key}[{place}]") for place, part in enumerate(value))
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not hint:
        raise ValueError(f"{key}={value!r} must be {hint.__name__}, not {type(value).__name__}")
    return value
