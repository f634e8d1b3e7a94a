# SPDX-License-Identifier: Apache-2.0
"""Attention of tree rows: a paged prefix that all see, and dense rows under a mask."""

import torch

from vllm_eagle_pangu.kernels.implementations import Op
from vllm_eagle_pangu.kernels.tree_attention import reference
from vllm_eagle_pangu.kernels.tree_attention.call import AttentionCall
from vllm_eagle_pangu.kernels.tree_attention.pages import PagedKV
from vllm_eagle_pangu.kernels.tree_attention.rows import AttentionRows

__all__ = ["AttentionCall", "AttentionRows", "PagedKV", "prepare", "tree_attention"]

_OP = Op(
    reference.tree_attention,
    # Ascend, by its own operators: see docs/ascend.md.
    npu="npu_impl",
    npu_torch_tree="npu_torch_tree",
    npu_splitfuse="npu_splitfuse",
    npu_padded="npu_padded",
)
# Takes the dtype of query, keys and values as well.
prepare = _OP.prepare


def tree_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    pages: PagedKV,
    rows: AttentionRows,
    scale: float,
    output: torch.Tensor,
    implementation: str | None = None,
    check: bool = False,
) -> None:
    """Attend the tree rows of T requests, writing their rows of `output`.

    Paged and dense keys, those that `rows` says, stand in one softmax. A row that sees nothing
    becomes 0; output rows of no request are left alone. Query head h uses KV head h // (H // Hk).
    Pages without an attended key are not read, nor are their entries of the block table, which may
    hold anything.

    Layouts: see `AttentionCall`. `check` asserts shapes, dtypes and ranges first, which syncs with
    the device.

    Raises:
        ValueError: `implementation` names none of the op's; None is the device's own.
        RuntimeError: it cannot run on this machine; the message says why and what to do.
    """
    call = AttentionCall(query, key, value, pages, rows, scale, output)
    if check:
        call.check_sizes()
        rows.check(query, key, pages)
    _OP.on(query.device, implementation)(call)
