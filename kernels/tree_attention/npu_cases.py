# SPDX-License-Identifier: Apache-2.0
"""Cases of tree_attention as vllm-ascend lays out its pages, with room for a tree behind them."""

from dataclasses import replace
from typing import Any

import torch

from vllm_eagle_pangu.kernels.npu_runtime import DTYPES
from vllm_eagle_pangu.kernels.tree_attention.cases import CASES, AttentionCase

# Within the limits of all of Ascend's implementations.
SHAPE: dict[str, Any] = {
    "head_size": 128,
    "block_size": 128,
    "transposed_keys": False,
    "heads_in_slots": True,
    "room": True,
}


def _on_npu(case: AttentionCase) -> AttentionCase:
    dtype = case.dtype if case.dtype in DTYPES else torch.bfloat16
    return replace(case, **SHAPE, dtype=dtype)


# No fused operator of Ascend's takes a window beside a tree's mask.
NPU_CASES = tuple(_on_npu(case) for case in CASES if case.starts is None)
