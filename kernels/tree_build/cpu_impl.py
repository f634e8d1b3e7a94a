# SPDX-License-Identifier: Apache-2.0
"""tree_build as one C++ op (cpu/*.cpp)."""

import ctypes
import functools
import struct
from collections.abc import Callable
from pathlib import Path

import torch

from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.core.tree import TreeBatch
from vllm_eagle_pangu.kernels.native import load_native

# Fields of `Call` in cpu/tree_build.cpp.
_CALL = struct.Struct("@10P4q")


def tree_build(
    root_tokens: torch.Tensor,
    tokens: torch.Tensor,
    scores: torch.Tensor,
    parents: torch.Tensor,
    shape: TreeShape,
) -> TreeBatch:
    """As the reference; `parents` are trusted to be of an earlier candidate."""
    batch, capacity = tokens.shape
    assert capacity == shape.capacity, (capacity, shape)
    assert scores.shape == parents.shape == tokens.shape and root_tokens.shape == (batch,)
    assert root_tokens.dtype == tokens.dtype == parents.dtype == torch.int64
    assert scores.dtype == torch.float32, scores.dtype
    root_tokens, tokens = root_tokens.contiguous(), tokens.contiguous()
    scores, parents = scores.contiguous(), parents.contiguous()
    rows = shape.rows
    size = (batch, rows)
    tree = TreeBatch(
        tokens=torch.empty(size, dtype=torch.int64),
        parent=torch.empty(size, dtype=torch.int64),
        depth=torch.empty(size, dtype=torch.int64),
        valid=torch.empty(size, dtype=torch.bool),
        visible=torch.empty((batch, rows, rows), dtype=torch.bool),
        score=torch.empty(size, dtype=torch.float32),
        max_depth=shape.depth,
    )
    call = _CALL.pack(
        root_tokens.data_ptr(),
        tokens.data_ptr(),
        scores.data_ptr(),
        parents.data_ptr(),
        tree.tokens.data_ptr(),
        tree.parent.data_ptr(),
        tree.depth.data_ptr(),
        tree.valid.data_ptr(),
        tree.visible.data_ptr(),
        tree.score.data_ptr(),
        batch,
        capacity,
        shape.width,
        rows,
    )
    _entry()(call)
    return tree


def prepare() -> None:
    """Compile the op unless an earlier process did."""
    _entry()


@functools.cache
def _entry() -> Callable[[bytes], None]:
    """The C function; compiles the op unless an earlier process did."""
    library = load_native("tree_build", Path(__file__).parent / "cpu")
    library.tree_build_call_bytes.restype = ctypes.c_int64
    assert library.tree_build_call_bytes() == _CALL.size, "Call and _CALL differ"
    entry = library.tree_build
    entry.argtypes, entry.restype = (ctypes.c_char_p,), None
    return entry
