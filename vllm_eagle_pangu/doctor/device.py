# SPDX-License-Identifier: Apache-2.0
"""The device that vLLM will run on here, and what our worker takes of each op there."""

from vllm_eagle_pangu.env import NPU_IMPLEMENTATIONS, forced_eager_attention, npu_attention
from vllm_eagle_pangu.serving import needs

CPU, CUDA, NPU = "cpu", "cuda", "npu"
# `device_implementation` of the workers' runners.
IMPLEMENTATIONS = {CPU: "cpp", CUDA: "triton", NPU: "reference"}
# Every way to attend trees there, whichever the worker takes.
ROUTES = {CPU: ("cpp", "reference"), CUDA: ("triton", "reference"), NPU: NPU_IMPLEMENTATIONS}
# And to commit all layers at once; on an NPU with what vllm-ascend writes with.
COMMIT = {**IMPLEMENTATIONS, NPU: "npu"}


def device_type() -> str:
    """By what is installed: neither torch nor vLLM is imported."""
    if needs.installed_version("vllm-ascend"):
        return NPU
    return CPU if needs.runs_on_cpu() else CUDA


def chosen(op: str, device: str) -> str:
    """The implementation that our worker runs there."""
    if op != "tree_attention":
        return IMPLEMENTATIONS[device]
    if device == NPU:
        return npu_attention()
    return "reference" if forced_eager_attention() else IMPLEMENTATIONS[device]
