# SPDX-License-Identifier: Apache-2.0
"""vLLM 0.32: what takes the place of its parts, by device type."""

from vllm_eagle_pangu.compat.platform_parts import PlatformParts

PLATFORMS = {
    "cpu": PlatformParts(
        worker="vllm_eagle_pangu.engine.cpu_worker.TreeCPUWorker",
        attention={"CPU_ATTN": "vllm_eagle_pangu.engine.cpu_attention.TreeCPUAttentionBackend"},
    ),
    "cuda": PlatformParts(
        worker="vllm_eagle_pangu.engine.gpu_worker.TreeGPUWorker",
        attention={
            "FLASH_ATTN": "vllm_eagle_pangu.engine.flash_attention.TreeFlashAttentionBackend",
            "TRITON_ATTN": "vllm_eagle_pangu.engine.triton_attention.TreeTritonAttentionBackend",
        },
    ),
}
