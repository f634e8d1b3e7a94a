# SPDX-License-Identifier: Apache-2.0
"""CPU kernels for Ascend's operators: what their documents say, and every limit they state.

Registered under the operators' real schemas, which torch_npu brings, so a call that binds here
binds on an NPU. What a document leaves open comes back as NaN. They say nothing of what the
hardware does. Sources, in op-plugin: docs/zh/custom_APIs/torch_npu/torch_npu-npu_*.md,
test/test_custom_ops/test_{atb_paged_attention_splitfuse,atb_reshape_and_cache}.py and
test_npu_attention_update.py, op_plugin/ops/atb/PagedAttentionSplitfuse.cpp; in CANN,
fused_infer_attention_score_tiling_check_feature.cpp.
"""

from itertools import pairwise
from typing import Any

import torch

# Tests that compare closely add float32, which no operator takes.
DTYPES = [torch.float16, torch.bfloat16]
_TRIANGLE = 2048
_LIBRARIES: list[torch.library.Library] = []


class UndocumentedError(AssertionError):
    """A call beyond what an operator's document allows or describes."""


def allow(holds: bool, rule: str) -> None:
    if not holds:
        raise UndocumentedError(rule)


def register() -> None:
    """Once per process, after torch_npu is imported."""
    kernels = {
        "npu": (npu_fused_infer_attention_score, npu_attention_update, npu_scatter_pa_kv_cache),
        "atb": (_npu_paged_attention_splitfuse, _npu_reshape_and_cache),
    }
    for namespace, functions in kernels.items():
        library = torch.library.Library(namespace, "IMPL", "CPU")
        for function in functions:
            library.impl(function.__name__, function)
        _LIBRARIES.append(library)


def attend(
    query: torch.Tensor,  # [Q, H, K]
    key: torch.Tensor,  # [S, Hk, K]
    value: torch.Tensor,  # [S, Hk, K]
    scale: float,
    bias: torch.Tensor,  # [Q, S] float32, -inf what is hidden
) -> tuple[torch.Tensor, torch.Tensor]:  # [Q, H, K], [Q, H] float32
    group = query.shape[1] // key.shape[1]
    key, value = (x.float().repeat_interleave(group, 1) for x in (key, value))
    scores = torch.einsum("qhk,shk->hqs", query.float(), key) * scale + bias
    return torch.einsum("hqs,shk->qhk", scores.softmax(-1), value), scores.logsumexp(-1).mT


def npu_fused_infer_attention_score(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """TND over pages or rows, and BSND over pages or rows; nothing quantised, no rope."""
    known = {
        *("atten_mask", "actual_seq_lengths", "actual_seq_lengths_kv", "block_table", "num_heads"),
        *("scale", "input_layout", "num_key_value_heads", "sparse_mode", "block_size"),
        "softmax_lse_flag",
    }
    given = {name for name, option in options.items() if option is not None}
    allow(given <= known, f"not stood in for: {given - known}")
    layout, paged = options.get("input_layout", "BSH"), options.get("block_table") is not None
    heads = options.get("num_heads", 1)
    kv_heads = options.get("num_key_value_heads", 0) or heads
    allow(layout in ("TND", "BSND"), f"input_layout={layout} is not stood in for")
    allow(query.dim() == len(layout), f"query {tuple(query.shape)} is not {layout}")
    allow(heads == query.shape[-2], f"num_heads={heads} of {query.shape[-2]}")
    allow(heads % kv_heads == 0 and heads // kv_heads <= 64, "num_heads / num_key_value_heads")
    allow(heads <= 256, "heads at most 256")
    allow(query.dtype in DTYPES, f"query is {query.dtype}")
    allow(query.dtype == key.dtype == value.dtype, "dtypes differ")
    allow(all(x.is_contiguous() for x in (query, key, value)), "not contiguous")
    allow(key.shape == value.shape, "key and value differ in shape")
    size = query.shape[-1]
    allow(size % 16 == 0 and size <= 512, f"D={size}")
    # 64: not in op-plugin's document, but in CANN's own check of the sizes.
    allow(layout != "TND" or size in (64, 128, 192), f"TND: D={size}")
    keys = _paged_keys if paged else _dense_keys
    pairs = keys(key, value, kv_heads, query, options)
    attended, lse = (_ragged if layout == "TND" else _padded)(query, pairs, options)
    lse = lse if options.get("softmax_lse_flag") else torch.zeros(1)
    return attended.to(query.dtype), lse


def _paged_keys(
    key: torch.Tensor,  # [blocks, block_size, Hk * K]
    value: torch.Tensor,
    kv_heads: int,
    query: torch.Tensor,
    options: dict[str, Any],
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    table, block = options["block_table"], options.get("block_size", 0)
    lengths = options.get("actual_seq_lengths_kv")
    allow(table.dtype == torch.int32 and table.dim() == 2, "block_table is not 2-D int32")
    allow(table.is_contiguous(), "block_table is not contiguous")
    allow(block in (128, 256, 384, 512), f"block_size={block}")
    wanted = (block, kv_heads * query.shape[-1])
    allow(tuple(key.shape[1:]) == wanted, f"pages {tuple(key.shape)} are not BnBsH")
    allow(lengths is not None, "pages need actual_seq_lengths_kv")
    allow(len(lengths) == table.shape[0], "not as many lengths as rows of the block table")
    allow(min(lengths) >= 1, "a request without keys")
    allow(max(lengths) <= table.shape[1] * block, "keys beyond the block table")
    return [
        tuple(_from_pages(x, row, length, kv_heads) for x in (key, value))
        for row, length in zip(table, lengths, strict=True)
    ]


def _from_pages(
    pages: torch.Tensor, table: torch.Tensor, length: int, kv_heads: int
) -> torch.Tensor:
    """`[length, Hk, K]`."""
    used = table[: -(-length // pages.shape[1])].long()
    allow(bool(((used >= 0) & (used < pages.shape[0])).all()), f"block ids {used.tolist()}")
    return pages[used].flatten(0, 1)[:length].reshape(length, kv_heads, -1)


def _dense_keys(
    key: torch.Tensor,
    value: torch.Tensor,
    kv_heads: int,
    query: torch.Tensor,
    options: dict[str, Any],
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    allow(key.shape[-2:] == (kv_heads, query.shape[-1]), f"key {tuple(key.shape)}")
    # vllm-ascend gives a block size with rows, too, in a batch of first chunks.
    ends = options.get("actual_seq_lengths_kv")
    if key.dim() == 4:
        allow(key.shape[0] == query.shape[0], "batches differ")
        ends = ends or [key.shape[1]] * key.shape[0]
        return [(k[:end], v[:end]) for k, v, end in zip(key, value, ends, strict=True)]
    allow(ends is not None, "TND needs actual_seq_lengths_kv")
    return [(key[a:b], value[a:b]) for a, b in pairwise([0, *ends])]


def _ragged(
    query: torch.Tensor, pairs: list[Any], options: dict[str, Any]
) -> tuple[torch.Tensor, torch.Tensor]:
    ends = options.get("actual_seq_lengths")
    allow(ends is not None, "TND needs actual_seq_lengths")
    allow(len(ends) == len(pairs) <= 4096, f"{len(ends)} requests, {len(pairs)} of keys")
    allow(all(a <= b for a, b in pairwise([0, *ends])), f"{ends} are not ends")
    allow(ends[-1] == query.shape[0], f"{ends[-1]} of {query.shape[0]} query rows")
    parts = []
    for (start, end), (key, value) in zip(pairwise([0, *ends]), pairs, strict=True):
        bias = _triangle(end - start, key.shape[0], options)
        parts.append(attend(query[start:end], key, value, options.get("scale", 1.0), bias))
    return torch.cat([x for x, _ in parts]), torch.cat([lse for _, lse in parts])[..., None]


def _triangle(queries: int, keys: int, options: dict[str, Any]) -> torch.Tensor:
    """What rows of a ragged call see: all, or for mode 3 up to themselves from the lower right.

    A mask's content plays no part: "2048 x 2048, the user sees to it that it is triangular".
    """
    mask, mode = options.get("atten_mask"), options.get("sparse_mode", 0)
    bias = torch.zeros(queries, keys)
    if mode == 0:
        allow(mask is None, "TND: sparse_mode 0 takes no mask")
        return bias
    allow(mode == 3, f"sparse_mode={mode} is not stood in for")
    allow(mask is not None and mask.shape[-2:] == (_TRIANGLE,) * 2, "a mask of 2048 x 2048")
    hidden = torch.ones(queries, keys).triu(keys - queries + 1).bool()
    return bias.masked_fill(hidden, -torch.inf)


def _padded(
    query: torch.Tensor, pairs: list[Any], options: dict[str, Any]
) -> tuple[torch.Tensor, torch.Tensor]:
    batch, queries, heads, size = query.shape
    allow(queries >= 2, "one query row: another branch, not stood in for")
    allow(heads * size < 65535, "N * D of BSND")
    allow(options.get("sparse_mode", 0) == 0, "BSND: sparse_mode other than 0 is not stood in for")
    allow(len(pairs) == batch, f"{len(pairs)} requests of keys for {batch}")
    mask, table = options.get("atten_mask"), options.get("block_table")
    longest = max(len(key) for key, _ in pairs)
    if table is not None:
        longest = table.shape[1] * options["block_size"]
    if mask is not None:
        allow(mask.dtype in (torch.bool, torch.int8, torch.uint8), f"mask is {mask.dtype}")
        allow(mask.is_contiguous(), "mask is not contiguous")
        allow(mask.shape[:3] == (batch, 1, queries), f"mask {tuple(mask.shape)}")
        allow(mask.shape[3] >= longest, f"a mask of {mask.shape[3]} for {longest} keys")
    counts = options.get("actual_seq_lengths") or [queries] * batch
    allow(len(counts) == batch and max(counts) <= queries, f"{counts} of {queries} query rows")
    # Rows that are not asked for: nobody says what they are.
    attended = torch.full((batch, queries, heads, size), torch.nan)
    lse = torch.full((batch, heads, queries, 1), torch.nan)
    for b, ((key, value), count) in enumerate(zip(pairs, counts, strict=True)):
        bias = torch.zeros(count, key.shape[0])
        if mask is not None:
            bias = bias.masked_fill(mask[b, 0, :count, : key.shape[0]].bool(), -torch.inf)
        attended[b, :count], got = attend(
            query[b, :count], key, value, options.get("scale", 1.0), bias
        )
        lse[b, :, :count, 0] = got.mT
    return attended, lse


def npu_attention_update(
    lse: list[torch.Tensor], local_out: list[torch.Tensor], update_type: int
) -> tuple[torch.Tensor, torch.Tensor]:
    allow(1 <= len(lse) == len(local_out) <= 16, f"{len(lse)} lse, {len(local_out)} outputs")
    allow(update_type in (0, 1), f"update_type={update_type}")
    for weight, out in zip(lse, local_out, strict=True):
        allow(weight.dim() == 1 and weight.dtype == torch.float32, "lse is not 1-D float32")
        allow(out.dim() == 2 and out.shape[0] == weight.shape[0], f"out {tuple(out.shape)}")
        allow(out.shape[1] % 8 == 0 and 8 <= out.shape[1] <= 512, f"head_dim {out.shape[1]}")
        allow(out.dtype == local_out[0].dtype, "outputs differ in dtype")
        allow(out.is_contiguous() and weight.is_contiguous(), "not contiguous")
    weights = torch.stack(lse)
    merged = weights.logsumexp(0)
    outs = torch.stack([out.float() for out in local_out])
    result = (outs * (weights - merged).exp()[..., None]).sum(0)
    # Without update_type 1 the second result is nothing to rely on.
    return result.to(local_out[0].dtype), merged if update_type else merged.new_full((), torch.nan)


def _npu_paged_attention_splitfuse(
    query: torch.Tensor,  # [T, H, K]
    key_cache: torch.Tensor,  # [blocks, block_size, Hk, K]
    value_cache: torch.Tensor,
    block_table: torch.Tensor,  # [B, P] int32
    context_lens: torch.Tensor,  # [B] int32
    mask: torch.Tensor,  # [T, at least the longest context], added
    seq_len: torch.Tensor,  # [B] int32, on the host
    num_kv_heads: int,
    num_heads: int,
    scale_value: float,
    out: torch.Tensor,
) -> None:
    _, block, kv_heads, size = key_cache.shape
    tokens, heads, _ = query.shape
    requests = block_table.shape[0]
    allow(query.dtype in DTYPES, f"query is {query.dtype}")
    same = (query, key_cache, value_cache, mask, out)
    allow(len({x.dtype for x in same}) == 1, "dtypes differ")
    allow(all(x.is_contiguous() for x in same), "not contiguous")
    allow(block <= 128 and block * size <= 16384 and heads * size <= 16384, "sizes of a block")
    allow(requests <= 2000, f"{requests} requests")
    allow(heads == num_heads and kv_heads == num_kv_heads, "numbers of heads")
    ints = (block_table, context_lens, seq_len)
    allow(all(x.dtype == torch.int32 for x in ints), "not int32")
    allow(context_lens.shape == seq_len.shape == (requests,), "lengths per request")
    allow(int(seq_len.sum()) == tokens and out.shape == query.shape, f"{tokens} query rows")
    allow(mask.dim() == 2 and mask.shape[0] == tokens, f"mask {tuple(mask.shape)}")
    allow(mask.shape[1] >= int(context_lens.max()), "a mask shorter than a context")
    end = 0
    for t, (length, count) in enumerate(zip(context_lens.tolist(), seq_len.tolist(), strict=True)):
        rows = slice(end, end := end + count)
        allow(length >= 1, "a request without keys")
        key, value = (
            _from_pages(x.flatten(2), block_table[t], length, kv_heads)
            for x in (key_cache, value_cache)
        )
        bias = mask[rows, :length].float()
        out[rows] = attend(query[rows], key, value, scale_value, bias)[0].to(out.dtype)


def _npu_reshape_and_cache(
    key: torch.Tensor,  # [S, Hk, K]
    value: torch.Tensor,
    key_cache: torch.Tensor,  # [blocks, block_size, Hk, K]
    value_cache: torch.Tensor,
    slot_indices: torch.Tensor,  # [S] int32; negative ones are skipped
) -> None:
    allow(slot_indices.dtype == torch.int32, f"slots are {slot_indices.dtype}")
    _write(key, value, key_cache, value_cache, slot_indices)


def npu_scatter_pa_kv_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    compress_lens: torch.Tensor | None = None,
    compress_seq_offsets: torch.Tensor | None = None,
    seq_lens: torch.Tensor | None = None,
    cache_mode: str | None = "PA_NZ",
) -> None:
    allow(cache_mode in (None, "Norm"), f"cache_mode={cache_mode}: these pages are ND")
    allow(compress_lens is compress_seq_offsets is seq_lens is None, "no compression here")
    allow(slot_mapping.dtype in (torch.int32, torch.int64), f"slots are {slot_mapping.dtype}")
    allow(bool((slot_mapping >= 0).all()), "a negative slot")
    _write(key, value, key_cache, value_cache, slot_mapping)


def _write(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    tensors = (key, value, key_cache, value_cache)
    allow(len({x.dtype for x in tensors}) == 1, "dtypes differ")
    allow(all(x.is_contiguous() for x in (*tensors, slots)), "not contiguous")
    allow(slots.shape == (key.shape[0],), f"{tuple(slots.shape)} slots")
    kept = slots >= 0
    to = slots[kept].long()
    allow(to.unique().numel() == to.numel(), "a slot twice")
    for rows, pages in ((key, key_cache), (value, value_cache)):
        allow(pages.shape[2:] == rows.shape[1:], f"pages {tuple(pages.shape)}")
        allow(bool((to < pages.shape[0] * pages.shape[1]).all()), "a slot beyond the pages")
        pages.view(-1, *pages.shape[2:])[to] = rows[kept]
