# SPDX-License-Identifier: Apache-2.0
"""vLLM 0.23: what takes the place of its parts, by device type."""

from vllm_eagle_pangu.compat import ascend
from vllm_eagle_pangu.compat.platform_parts import PlatformParts

PLATFORMS = {
    "cpu": PlatformParts(
        worker="vllm_eagle_pangu.compat.cpu_worker_0_23.TreeCPUWorker023",
        attention={
            "CPU_ATTN": "vllm_eagle_pangu.compat.cpu_attention_0_23.TreeCPUAttentionBackend023"
        },
    ),
    "cuda": PlatformParts(
        worker="vllm_eagle_pangu.engine.gpu_worker.TreeGPUWorker",
        attention={
            "FLASH_ATTN": "vllm_eagle_pangu.engine.flash_attention.TreeFlashAttentionBackend",
            "TRITON_ATTN": "vllm_eagle_pangu.engine.triton_attention.TreeTritonAttentionBackend",
        },
    ),
    "npu": ascend.PARTS,
}
