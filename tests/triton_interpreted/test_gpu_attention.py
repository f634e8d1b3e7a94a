# SPDX-License-Identifier: Apache-2.0
"""The layers' attention on vLLM's GPU backends, whose pages have other layouts than the CPU's."""

from importlib import import_module
from types import SimpleNamespace

import pytest
import torch

from vllm_eagle_pangu.compat import PLATFORMS
from vllm_eagle_pangu.core.ops import Ops
from vllm_eagle_pangu.engine.loaded_layers import require_readable_pages
from vllm_eagle_pangu.kernels.tree_attention import PagedKV, tree_attention
from vllm_eagle_pangu.step.rows import LayerScratch, VerifyRows

HEADS, KV_HEADS, HEAD_SIZE, BLOCKS, PAGE = 4, 2, 64, 12, 16

# vLLM's cache tensor of a layer, by line and by layout in memory.
LAYOUTS = {
    "0.32 HND": lambda: torch.randn(BLOCKS, KV_HEADS, PAGE, 2 * HEAD_SIZE),
    "0.32 NHD": lambda: torch.randn(BLOCKS, PAGE, KV_HEADS, 2 * HEAD_SIZE).transpose(1, 2),
    "0.23 NHD": lambda: torch.randn(BLOCKS, 2, PAGE, KV_HEADS, HEAD_SIZE),
    "0.23 HND": lambda: torch.randn(BLOCKS, 2, KV_HEADS, PAGE, HEAD_SIZE).transpose(2, 3),
}


def split_cache(cache):
    """Keys and values `[blocks, Hk, block_size, K]`, as vLLM's own code takes a cache apart."""
    if cache.dim() == 4:
        return cache.split(HEAD_SIZE, dim=-1)
    key, value = cache.unbind(1)
    return key.transpose(1, 2), value.transpose(1, 2)


@pytest.fixture(params=["TRITON_ATTN", "FLASH_ATTN"])
def impl(request, monkeypatch):
    """Our attention on a backend, its cache write done in torch: vLLM's own needs a GPU."""
    module, _, name = PLATFORMS["0.32"]["cuda"].attention[request.param].rpartition(".")
    made_of = getattr(import_module(module), name).get_impl_cls()
    if request.param == "TRITON_ATTN":
        made = made_of(HEADS, HEAD_SIZE, HEAD_SIZE**-0.5, KV_HEADS, None, None, "auto")
    else:
        # Its constructor asks the driver which FlashAttention there is.
        made = object.__new__(made_of)
        made.scale, made.window = HEAD_SIZE**-0.5, None
        made.scratch, made._pages = None, None

    def write(layer, key, value, cache, slots):
        for pages, rows in zip(split_cache(cache), (key, value), strict=True):
            pages[slots // PAGE, :, slots % PAGE] = rows

    made.do_kv_cache_update = write
    return made


@pytest.fixture(params=LAYOUTS)
def cache(request):
    torch.manual_seed(1)
    return LAYOUTS[request.param]()


def layer_of(impl, cache):
    return SimpleNamespace(
        kv_cache=cache,
        kv_cache_torch_dtype=cache.dtype,
        impl=impl,
        num_kv_heads=KV_HEADS,
        head_size=HEAD_SIZE,
        layer_name="layer.0",
    )


def test_the_pages_are_proved_readable_at_start_up_and_left_as_they_were(impl, cache):
    before = cache.clone()
    require_readable_pages(layer_of(impl, cache))
    assert torch.equal(cache[1:], before[1:]), "only the null block may be written to"


def test_pages_in_another_layout_are_refused_by_name(impl, cache, monkeypatch):
    views = type(impl).page_views

    def swapped(self, layer, kv_cache):
        pages = views(self, layer, kv_cache)
        pages.key, pages.value = pages.value, pages.key
        return pages

    monkeypatch.setattr(type(impl), "page_views", swapped)
    with pytest.raises(ValueError, match=r"KV pages of layer\.0 .* cannot read; use"):
        require_readable_pages(layer_of(impl, cache))


def test_tree_rows_are_attended_on_the_backends_pages_behind_padding(impl, cache):
    """Two trees in a batch that a CUDA graph padded; what lies behind their rows stays."""
    rows, padded = 12, 16
    query = torch.randn(padded, HEADS, HEAD_SIZE)
    key, value = (torch.randn(padded, KV_HEADS, HEAD_SIZE) for _ in range(2))
    output = torch.full((padded, HEADS, HEAD_SIZE), torch.nan)
    counts = torch.tensor([7, 5], dtype=torch.int32)
    start = torch.tensor([0, 7], dtype=torch.int32)
    trees = VerifyRows(
        block_table=torch.tensor([[3, 1, 7], [2, 9, 0]], dtype=torch.int32),
        prefix_len=torch.tensor([41, 20], dtype=torch.int32),
        query_start=start,
        query_count=counts,
        key_start=start,
        key_count=counts,
        visible=torch.rand(2, 7, 7) < 0.5,
        covers_batch=True,
        batch_rows=torch.arange(rows),
    )
    impl.attend = Ops.bind("triton").tree_attention
    impl.scratch = LayerScratch.empty(layer_of(impl, cache), rows, cache.device)
    impl.forward(None, query, key, value, cache, SimpleNamespace(tree=trees), output)
    expected = torch.full_like(output, torch.nan)
    pages = PagedKV(*split_cache(cache))
    tree_attention(query, key, value, pages, trees, HEAD_SIZE**-0.5, expected, "reference")
    torch.testing.assert_close(output, expected, equal_nan=True, atol=1e-5, rtol=1e-5)
    assert torch.equal(impl.scratch.key, key[:rows]) and torch.equal(
        impl.scratch.value, value[:rows]
    )
