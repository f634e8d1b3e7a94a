# SPDX-License-Identifier: Apache-2.0
"""What stands in for vLLM's own parts on a platform when the method is chosen."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class PlatformParts:
    """Import paths of our classes.

    `worker`: for `parallel_config.worker_cls`.
    `attention`: by name of an `AttentionBackendEnum`, the backend that takes its place.
    `check`: a function of vLLM's finished configuration, still with the platform's own worker and
    scheduler in it, that refuses what only this platform has.
    `graphs`: whether trees run where vLLM captures the target's forward as a graph.
    """

    worker: str
    attention: Mapping[str, str]
    check: str | None = None
    graphs: bool = True


def replace_attention_backends(parts: PlatformParts) -> None:
    """Register our attention backends over vLLM's, in this process. Idempotent."""
    # Why: a platform knows a closed list of attention backends, and the CPU's only CPU_ATTN.
    # How: the registry's own override; the selector's cache may hold the class it replaces.
    # Upstream: vllm/v1/attention/backends/registry.py, vllm/v1/attention/selector.py.
    # Remove when: platforms honour AttentionBackendEnum.CUSTOM.
    from vllm.v1.attention import selector
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    for name, path in parts.attention.items():
        backend = AttentionBackendEnum[name]
        if backend.get_path() != path:
            register_backend(backend, path)
            selector._cached_get_attn_backend.cache_clear()
