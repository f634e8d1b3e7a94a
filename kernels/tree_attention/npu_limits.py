# SPDX-License-Identifier: Apache-2.0
"""The documented limits of Ascend's attention operators, as each implementation meets them.

Sources: op-plugin, docs/zh/custom_APIs/torch_npu/torch_npu-npu_fused_infer_attention_score.md
(sections on PageAttention, TND, Q_S > 1); CANN,
fused_infer_attention_score_tiling_check_feature.cpp, which takes heads of 64 in TND, too; ATB's
PagedAttentionOperation, CALC_TYPE_SPEC.
"""

from dataclasses import dataclass

import torch

from vllm_eagle_pangu.kernels import npu_runtime
from vllm_eagle_pangu.kernels.npu_runtime import Limit, keep_within
from vllm_eagle_pangu.kernels.tree_attention.call import AttentionCall
from vllm_eagle_pangu.kernels.tree_attention.npu_rows import NpuRows

NPU, TORCH_TREE, SPLITFUSE, PADDED = "npu", "npu_torch_tree", "npu_splitfuse", "npu_padded"


@dataclass(frozen=True)
class AttentionLayer:
    """An attention layer's sizes."""

    heads: int
    kv_heads: int
    head_size: int
    block_size: int
    dtype: torch.dtype


def rows_within_limits(implementation: str, call: AttentionCall) -> NpuRows | None:
    """The rows of a call; None where it has no requests.

    Raises ValueError beyond the limits, and for rows with a window.
    """
    if not call.rows.visible.shape[0]:
        return None
    npu = NpuRows.of(call.rows)
    _, kv_heads, block_size, head_size = call.pages.shape
    layer = AttentionLayer(call.query.shape[1], kv_heads, head_size, block_size, call.query.dtype)
    refuse_beyond_limits(implementation, layer, len(npu.prefixes))
    return npu


def refuse_beyond_limits(implementation: str, layer: AttentionLayer, requests: int) -> None:
    """At construction with the most requests of a batch, and with each call's own.

    Raises ValueError: name, value, limit and mend.
    """
    heads, kv_heads, size, block = layer.heads, layer.kv_heads, layer.head_size, layer.block_size
    group, width = heads / kv_heads, heads * size
    limits: list[Limit] = [
        ("dtype", layer.dtype, layer.dtype in npu_runtime.DTYPES, "float16 or bfloat16"),
        ("heads", heads, heads % kv_heads == 0, f"a multiple of kv_heads={kv_heads}"),
        ("heads", heads, heads <= 256, "at most 256"),
        ("heads / kv_heads", group, group <= 64, "at most 64"),
    ]
    if implementation == SPLITFUSE:
        limits += [
            ("block_size", block, block <= 128, "at most 128"),
            ("block_size * head_size", block * size, block * size <= 16384, "at most 16384"),
            ("heads * head_size", width, width <= 16384, "at most 16384"),
            ("requests", requests, requests <= 2000, "at most 2000"),
        ]
    else:
        # FIA with pages: ragged rows (TND) for the prefix alone, or padded ones (BSND).
        limits += [("block_size", block, block in (128, 256, 384, 512), "128, 256, 384 or 512")]
        if implementation == PADDED:
            fits = size % 16 == 0 and size <= 512
            limits += [
                ("head_size", size, fits, "a multiple of 16, at most 512"),
                ("heads * head_size", width, width < 65535, "less than 65535"),
                ("requests", requests, requests <= 65536, "at most 65536"),
            ]
        else:
            limits += [
                ("head_size", size, size in (64, 128, 192), "64, 128 or 192"),
                ("requests", requests, requests <= 4096, "at most 4096"),
            ]
    mend = "choose another of tree attention's implementations, or PANGU_FORCE_EAGER_ATTN=1"
    keep_within(f"tree attention by {implementation!r}", limits, mend)
