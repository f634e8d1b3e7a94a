# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations
from dataclasses import dataclass

@dataclass(frozen=True)
class TargetConfig:
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
    tokens_per_step: int = 8192
    micro_batch_tokens: int = 4096
    matrix_lr: float = 0.02
    other_lr: float = 0.003
    warmup: float = 0.02
    hold: float = 0.3
    max_grad_norm: float = 1.0
    max_tokens: int | None = None
    max_minutes: float | None = 65.0
    save_minutes: float = 5.0
    log_every: int = 10
    compile: bool = True

DEFAULT_PACKAGES = ("stdlib","torch","transformers","vllm","sympy","networkx","numpy","pydantic","aiohttp","fastapi","huggingface_hub","pip","setuptools","rich","pygments","numba","mypy","hypothesis","_pytest","mpmath","opentelemetry","triton","jinja2","click","httpx","starlette","packaging","PIL","supervisor")

@dataclass(frozen=True)
class CorpusConfig:
    packages: tuple[str, ...] = DEFAULT_PACKAGES
    vocab_size: int = 6144
    max_length: int = 2048
    max_file_bytes: int = 150_000
    max_package_bytes: int = 2_000_000
    held_out_stdlib: int = 80
    held_out_packages: int = 15

@dataclass(frozen=True)
class GenerateConfig:
    samples: int = 2560
    length: int = 512
    batch: int = 64
    temperatures: tuple[float, ...] = (0.0, 0.8)
    prompt_lengths: tuple[int, ...] = (32, 64, 128, 224)

@dataclass(frozen=True)
class HeadConfig:
    taps: tuple[int, ...] = (2, 4, 5)
    intermediate_size: int = 1024
    draft_vocab_size: int = 2560
    rollout_steps: int = 6
    step_decay: float = 0.8
    batch: int = 8
    matrix_lr: float = 0.02
    other_lr: float = 0.002
    warmup: float = 0.02
    hold: float = 0.3
    corpus_share: float = 0.2
    max_tokens: int | None = None
    max_minutes: float | None = 25.0
    save_minutes: float = 3.0
    log_every: int = 10
    compile: bool = True
