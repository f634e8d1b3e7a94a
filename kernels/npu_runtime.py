# SPDX-License-Identifier: Apache-2.0
"""Ascend's own operators: torch_npu must be there, and their documented limits be kept."""

import importlib
from collections.abc import Iterable
from typing import Any

import torch

# What our implementations call, and which do.
OPERATORS = {
    "npu.npu_fused_infer_attention_score": ("npu", "npu_torch_tree", "npu_padded"),
    "npu.npu_attention_update": ("npu", "npu_torch_tree"),
    "atb._npu_paged_attention_splitfuse": ("npu_splitfuse",),
    "atb._npu_reshape_and_cache": ("commit_pages npu",),
    "npu.npu_scatter_pa_kv_cache": ("commit_pages npu_a5",),
}
# What the attention operators take of queries, keys and values.
DTYPES = [torch.float16, torch.bfloat16]

# A name, its value, whether that is within the limits, and the limits in words.
Limit = tuple[str, Any, bool, str]


def require_torch_npu(op: str) -> None:
    """Raises RuntimeError where torch_npu, which brings the operators, does not import."""
    try:
        importlib.import_module("torch_npu")
    except ImportError as error:
        raise RuntimeError(
            f"{op}: needs torch_npu, which does not import ({error}); use the Ascend build of "
            'vLLM, or "verify_mode": "reference"'
        ) from error


def keep_within(what: str, limits: Iterable[Limit], mend: str) -> None:
    """Raises ValueError that names the first of `limits` that does not hold, and `mend`."""
    for name, value, holds, rule in limits:
        if not holds:
            raise ValueError(f"{what}: {name}={value} must be {rule}; {mend}")


def contiguous_pages(pages: torch.Tensor) -> torch.Tensor:
    """`[blocks, block_size, Hk, K]`, the order that the operators take, of `[blocks, Hk, ...]`.

    Raises ValueError where memory has another order.
    """
    slots_first = pages.transpose(1, 2)
    if not slots_first.is_contiguous():
        raise ValueError(
            f"KV pages: strides={tuple(slots_first.stride())} of [blocks, block_size, Hk, K] must "
            "be those of a contiguous tensor, as vllm-ascend allocates it (ND)"
        )
    return slots_first
