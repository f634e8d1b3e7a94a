# SPDX-License-Identifier: Apache-2.0
"""Tree attention on Ascend as in `npu_impl`, with the tree's part in plain torch."""

from functools import partial

import torch

from vllm_eagle_pangu.kernels.tree_attention import npu_impl
from vllm_eagle_pangu.kernels.tree_attention.call import AttentionCall
from vllm_eagle_pangu.kernels.tree_attention.npu_rows import NpuRows

prepare = npu_impl.prepare


def torch_tree(call: AttentionCall, npu: NpuRows) -> npu_impl.Part:
    """As `npu_impl.fused_tree`, computed in float32."""
    query, key, value, _, _, scale, _ = call
    padded = query[npu.query_rows].float().unflatten(2, (key.shape[1], -1))
    scores = torch.einsum("bqhgk,bshk->bqhgs", padded, npu.dense(key).float()) * scale
    scores = scores.masked_fill(npu.hidden[:, 0, :, None, None], -torch.inf)
    lse = scores.logsumexp(-1).flatten(2)
    weights = scores.softmax(-1)
    attended = torch.einsum("bqhgs,bshk->bqhgk", weights, npu.dense(value).float()).flatten(2, 3)
    part = attended.flatten(0, 1)[npu.place], lse.flatten(0, 1)[npu.place]
    return npu_impl.without_keys(part, npu.no_node)


tree_attention = partial(npu_impl.attend_in_parts, tree=torch_tree)
