# SPDX-License-Identifier: Apache-2.0
"""commit_slots and commit_pages as one C++ op each (cpu/*.cpp).

There is too little work to pay for torch ops, or for vLLM's cache write once per layer.
"""

import ctypes

import torch

from vllm_eagle_pangu.kernels.kv_commit.layers import CommitLayers
from vllm_eagle_pangu.kernels.native import NativeOp
from vllm_eagle_pangu.kernels.tree_attention.pages import PagedKV

_commit_slots = NativeOp(__file__, "commit_slots", "@3P3q", result=ctypes.c_int32)
# Two pointers, eight sizes and strides, and eight for the pages of each side.
_commit_pages = NativeOp(__file__, "commit_pages", "@2P24q")
prepare = _commit_slots.prepare


def commit_slots(path_rows: torch.Tensor, linear_slots: torch.Tensor) -> torch.Tensor:
    """See `reference.commit_slots`; int64, all on the CPU, any strides.

    Raises RuntimeError where the op cannot be compiled.
    """
    batch, rows = linear_slots.shape
    path_batch, path_columns = path_rows.shape
    assert path_batch == batch, (linear_slots.shape, path_rows.shape)
    assert path_rows.dtype == linear_slots.dtype == torch.int64, path_rows.dtype
    assert path_rows.is_cpu and linear_slots.is_cpu, "the cpp implementation takes CPU tensors"
    slots = torch.empty(batch, rows, dtype=torch.int64)
    in_tree = _commit_slots(path_rows, linear_slots, slots, batch, rows, path_columns)
    assert in_tree, "commit: a path leaves its tree"
    return slots


def commit_pages(layers: CommitLayers, slots: torch.Tensor) -> None:
    """See `reference.commit_pages`; all on the CPU, in two or four bytes an element.

    Raises RuntimeError where the op cannot be compiled.
    """
    layers.check_rows(slots)
    key, pages = layers.keys[0], layers.pages[0]
    assert key.dtype == pages.key.dtype, (key.dtype, pages.key.dtype)
    assert key.element_size() in (2, 4) and key.is_cpu and slots.dtype == torch.int64, key.dtype
    _commit_pages(
        layers.addresses,
        slots,
        len(layers.keys),
        len(slots),
        *key.shape[1:],
        pages.shape[2],
        key.element_size(),
        *key.stride()[:2],
        *_steps(pages, pages.key),
        *_steps(pages, pages.value),
    )


def _steps(pages: PagedKV, view: torch.Tensor) -> tuple[int, ...]:
    """`Pages` of cpu/commit_pages.cpp: strides, then what is in a group of slots, of elements."""
    if pages.in_amx_tiles:
        return (*view.stride(), view.shape[3], view.shape[5])
    block, head, slot, element = view.stride()
    return (block, head, 0, slot, 0, element, *pages.shape[2:])
