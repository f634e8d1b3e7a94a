# SPDX-License-Identifier: Apache-2.0
"""Tree attention by one FIA call over pages: padded query rows (BSND) take a mask.

Node K/V stands in pages during the call. Source: op-plugin,
docs/zh/custom_APIs/torch_npu/torch_npu-npu_fused_infer_attention_score.md. Checked against the
schema and a stand-in; never run on an NPU.
"""

import torch

from vllm_eagle_pangu.kernels.tree_attention import npu_impl
from vllm_eagle_pangu.kernels.tree_attention.call import AttentionCall
from vllm_eagle_pangu.kernels.tree_attention.npu_limits import PADDED, rows_within_limits
from vllm_eagle_pangu.kernels.tree_attention.npu_rows import staged
from vllm_eagle_pangu.kernels.tree_attention.npu_splitfuse import padded_visibility

prepare = npu_impl.prepare


def tree_attention(call: AttentionCall) -> None:
    """See `tree_attention`; float16 or bfloat16.

    Raises ValueError beyond the operator's limits, for rows with a window, and where a block table
    has no room for the tree behind its prefix.
    """
    query, _, _, pages, rows, scale, output = call
    npu = rows_within_limits(PADDED, call)
    if npu is None:
        return
    lengths, block_size = npu.contexts, pages.shape[2]
    columns = -(-max(1, *lengths) // block_size)
    # As wide as the block table's pages, though requests end before.
    width = columns * block_size
    hidden = rows.once(("npu hidden", width), lambda: ~padded_visibility(npu, width)[:, None])
    with staged(call, npu) as (paged_key, paged_value):
        attended, _ = torch.ops.npu.npu_fused_infer_attention_score(
            query[npu.query_rows],
            paged_key.flatten(2),
            paged_value.flatten(2),
            atten_mask=hidden,
            block_table=npu_impl.used_blocks(rows, columns),
            block_size=block_size,
            actual_seq_lengths=npu.queries,
            actual_seq_lengths_kv=[max(1, length) for length in lengths],
            num_heads=query.shape[1],
            num_key_value_heads=pages.shape[1],
            scale=scale,
            input_layout="BSND",
            sparse_mode=0,
        )
    packed = attended.flatten(0, 1)[npu.place]
    output[npu.packed] = packed.masked_fill(npu.no_key[:, None, None], 0)
