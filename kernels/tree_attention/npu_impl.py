# SPDX-License-Identifier: Apache-2.0
"""Tree attention on Ascend in two parts: the paged prefix, unmasked, and the dense tree.

FIA (`npu_fused_infer_attention_score`) takes no tree mask over pages where rows are ragged (TND):
there, mode 0 refuses a mask and modes 2 to 4 read a fixed triangle. So the prefix goes without a
mask, the tree, which is small, as a dense call with one, and `npu_attention_update` merges them by
their log-sum-exp. No node's K/V is in pages. Calls as in vllm-ascend 0.23.0,
attention/attention_v1.py (layers that are not causal) and attention/context_parallel/
{attention_cp,common_cp}.py (decoding: pages and log-sum-exp).
Checked against schemas and stand-ins; never run on an NPU.
"""

from collections.abc import Callable
from functools import partial
from itertools import accumulate

import torch

from vllm_eagle_pangu.kernels.npu_runtime import contiguous_pages, require_torch_npu
from vllm_eagle_pangu.kernels.tree_attention.call import AttentionCall
from vllm_eagle_pangu.kernels.tree_attention.npu_limits import NPU, rows_within_limits
from vllm_eagle_pangu.kernels.tree_attention.npu_rows import NpuRows
from vllm_eagle_pangu.kernels.tree_attention.rows import AttentionRows

# Attention of some keys to packed query rows, [T, H, K], and its log-sum-exp, [T, H] float32.
Part = tuple[torch.Tensor, torch.Tensor]
# Of a part without keys: finite, so that two of them merge to 0 and not to NaN.
NO_KEYS = -1e30


def prepare(dtype: torch.dtype) -> None:
    """Raises RuntimeError without torch_npu."""
    del dtype
    require_torch_npu("tree_attention")


def attend_in_parts(call: AttentionCall, tree: Callable[[AttentionCall, NpuRows], Part]) -> None:
    """See `tree_attention`: prefix, `tree` and their merge; float16 or bfloat16.

    Raises ValueError beyond the operators' limits (`npu_limits`), and for rows with a window.
    """
    npu = rows_within_limits(NPU, call)
    if npu is None:
        return
    parts = fused_prefix(call, npu), tree(call, npu)
    # Merged in float32, as vllm-ascend does: each operator's result is rounded already.
    merged, _ = torch.ops.npu.npu_attention_update(
        [lse.flatten().contiguous() for _, lse in parts],
        [attended.flatten(0, 1).float() for attended, _ in parts],
        0,
    )
    output = call.output
    output[npu.packed] = merged.view(-1, *output.shape[1:]).to(output.dtype)


def fused_prefix(call: AttentionCall, npu: NpuRows) -> Part:
    """All query rows against their requests' pages, ragged, without a mask."""
    query, pages = call.query, call.pages
    # What an operator makes of a request without keys is not documented: one key, not used.
    prefixes = [max(1, prefix) for prefix in npu.prefixes]
    columns = -(-max(prefixes) // pages.shape[2])
    attended, lse = torch.ops.npu.npu_fused_infer_attention_score(
        query[npu.packed],
        contiguous_pages(pages.key).flatten(2),
        contiguous_pages(pages.value).flatten(2),
        block_table=used_blocks(call.rows, columns),
        block_size=pages.shape[2],
        actual_seq_lengths=list(accumulate(npu.queries)),
        # Of pages, lengths; of rows, ends.
        actual_seq_lengths_kv=prefixes,
        num_heads=query.shape[1],
        num_key_value_heads=pages.shape[1],
        scale=call.scale,
        input_layout="TND",
        sparse_mode=0,
        softmax_lse_flag=True,
    )
    lse = lse.squeeze(-1)
    if npu.no_prefix is not None:
        return without_keys((attended, lse), npu.no_prefix)
    return attended, lse


def used_blocks(rows: AttentionRows, columns: int) -> torch.Tensor:
    """The block table's first columns; entries past a request's pages may point nowhere."""
    return rows.once(
        ("npu blocks", columns), lambda: rows.block_table[:, :columns].clamp(min=0).contiguous()
    )


def fused_tree(call: AttentionCall, npu: NpuRows) -> Part:
    """Each request's dense keys under its tree's mask, padded to the longest request."""
    attended, lse = torch.ops.npu.npu_fused_infer_attention_score(
        call.query[npu.query_rows],
        npu.dense(call.key),
        npu.dense(call.value),
        atten_mask=npu.hidden,
        num_heads=call.query.shape[1],
        num_key_value_heads=call.key.shape[1],
        scale=call.scale,
        input_layout="BSND",
        sparse_mode=0,
        softmax_lse_flag=True,
    )
    lse = lse.squeeze(-1).transpose(1, 2)
    part = attended.flatten(0, 1)[npu.place], lse.flatten(0, 1)[npu.place]
    return without_keys(part, npu.no_node)


tree_attention = partial(attend_in_parts, tree=fused_tree)


def without_keys(part: Part, rows: torch.Tensor) -> Part:
    """Rows `[T] bool` saw no key: what an operator gave there is not documented."""
    attended, lse = part
    return attended.masked_fill(rows[:, None, None], 0), lse.masked_fill(rows[:, None], NO_KEYS)
