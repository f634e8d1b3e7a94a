# SPDX-License-Identifier: Apache-2.0
"""The only place that knows vLLM's version and patches it; what takes the place of its parts."""

from collections.abc import Mapping

from vllm_eagle_pangu.compat import ascend
from vllm_eagle_pangu.compat.platform_parts import PlatformParts

_CUDA = PlatformParts(
    worker="vllm_eagle_pangu.engine.gpu_worker.TreeGPUWorker",
    attention={
        "FLASH_ATTN": "vllm_eagle_pangu.engine.flash_attention.TreeFlashAttentionBackend",
        "TRITON_ATTN": "vllm_eagle_pangu.engine.triton_attention.TreeTritonAttentionBackend",
    },
)
# By line of vLLM, then by its device type.
PLATFORMS: Mapping[str, Mapping[str, PlatformParts]] = {
    "0.23": {
        "cpu": PlatformParts(
            worker="vllm_eagle_pangu.compat.cpu_worker_0_23.TreeCPUWorker023",
            attention={
                "CPU_ATTN": "vllm_eagle_pangu.compat.cpu_attention_0_23.TreeCPUAttentionBackend023"
            },
        ),
        "cuda": _CUDA,
        "npu": ascend.PARTS,
    },
    "0.32": {
        "cpu": PlatformParts(
            worker="vllm_eagle_pangu.engine.cpu_worker.TreeCPUWorker",
            attention={"CPU_ATTN": "vllm_eagle_pangu.engine.cpu_attention.TreeCPUAttentionBackend"},
        ),
        "cuda": _CUDA,
    },
}
SUPPORTED = tuple(PLATFORMS)


def install() -> None:
    """Teach `EngineArgs` the method. Idempotent; silent also on a vLLM that we do not support."""
    from vllm_eagle_pangu.compat import engine_args

    engine_args.install(PLATFORMS.get(installed_line()))


def install_attention_backend() -> None:
    """Put our attention backends over the platform's own, in this process. Idempotent.

    Called by the worker, before it builds its model: without the method nothing is replaced.
    """
    # Why: a platform knows a closed list of attention backends, and the CPU's only CPU_ATTN.
    # How: the registry's own override; the selector's cache may hold the class it replaces.
    # Upstream: vllm/v1/attention/backends/registry.py, vllm/v1/attention/selector.py.
    # Remove when: platforms honour AttentionBackendEnum.CUSTOM.
    platforms = PLATFORMS.get(installed_line())
    if platforms is None:
        from vllm_eagle_pangu.compat import engine_args

        engine_args.refuse_version()
    from vllm.platforms import current_platform
    from vllm.v1.attention import selector
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    for name, path in platforms[current_platform.device_type].attention.items():
        backend = AttentionBackendEnum[name]
        if backend.get_path() != path:
            register_backend(backend, path)
            selector._cached_get_attn_backend.cache_clear()


def installed_line() -> str:
    """Of vLLM, as "0.32"."""
    import vllm

    return ".".join(vllm.__version__.split(".")[:2])
