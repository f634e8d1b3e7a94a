# SPDX-License-Identifier: Apache-2.0
"""Tree attention by ATB's paged attention for parallel decoding (A2, A3): one call, one mask.

Node K/V stands in pages during the call. Arguments as in vllm-ascend 0.23.0,
_310p/attention/attention_v1.py; the mask as in op-plugin's
test/test_custom_ops/test_atb_paged_attention_splitfuse.py: additive, a row per query row over all
of its keys. Checked against the schema and a stand-in; never run on an NPU.
"""

import torch

from vllm_eagle_pangu.kernels.tree_attention import npu_impl
from vllm_eagle_pangu.kernels.tree_attention.call import AttentionCall
from vllm_eagle_pangu.kernels.tree_attention.npu_limits import SPLITFUSE, rows_within_limits
from vllm_eagle_pangu.kernels.tree_attention.npu_rows import NpuRows, staged

prepare = npu_impl.prepare
# Added to the score of a key that a row does not see, as op-plugin's own test does.
HIDDEN = -10000.0


def tree_attention(call: AttentionCall) -> None:
    """See `tree_attention`; float16 or bfloat16.

    Raises ValueError beyond the operator's limits, for rows with a window, and where a block table
    has no room for the tree behind its prefix.
    """
    query, _, _, pages, rows, scale, output = call
    npu = rows_within_limits(SPLITFUSE, call)
    if npu is None:
        return
    lengths = npu.contexts
    mask = rows.once(("npu mask", query.dtype), lambda: _mask(npu, max(lengths), query.dtype))
    packed = query[npu.packed]
    attended = torch.empty_like(packed)
    with staged(call, npu) as (paged_key, paged_value):
        torch.ops.atb._npu_paged_attention_splitfuse(
            query=packed,
            key_cache=paged_key,
            value_cache=paged_value,
            block_table=rows.block_table,
            context_lens=torch.tensor(lengths, dtype=torch.int32, device=query.device),
            mask=mask,
            # On the host, as vllm-ascend keeps them.
            seq_len=torch.tensor(npu.queries, dtype=torch.int32),
            num_kv_heads=pages.shape[1],
            num_heads=query.shape[1],
            scale_value=scale,
            out=attended,
        )
    output[npu.packed] = attended.masked_fill(npu.no_key[:, None, None], 0)


def _mask(npu: NpuRows, length: int, dtype: torch.dtype) -> torch.Tensor:
    """`[T, length]`: 0 where a row sees a key, prefix and tree behind each other."""
    sees = padded_visibility(npu, length)
    hidden = torch.zeros(sees.shape, dtype=dtype, device=sees.device).masked_fill(~sees, HIDDEN)
    return hidden.flatten(0, 1)[npu.place]


def padded_visibility(npu: NpuRows, length: int) -> torch.Tensor:
    """`[B, Q, length] bool`: a request's prefix, then its dense keys, then nothing."""
    device, queries = npu.sees.device, npu.sees.shape[1]
    prefix = torch.tensor(npu.prefixes, device=device)[:, None, None]
    behind = torch.arange(length, device=device) - prefix
    in_tree = (behind >= 0) & (behind < npu.sees.shape[2])
    node = behind.clamp(0, npu.sees.shape[2] - 1).expand(-1, queries, -1)
    return (behind < 0) | (npu.sees.gather(2, node) & in_tree)
