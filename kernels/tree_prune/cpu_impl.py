# SPDX-License-Identifier: Apache-2.0
"""tree_prune and tally_paths in C++ (cpu/tree_prune.cpp): a step has no time for torch ops."""

import struct
from collections.abc import Callable
from dataclasses import fields

import torch

from vllm_eagle_pangu.kernels.native import addresses, native_op
from vllm_eagle_pangu.kernels.tree_build.trees import Trees
from vllm_eagle_pangu.kernels.tree_prune.belief import LEAST, MOST, PRIOR, STEP, Belief

# Fields of `Call` in cpu/tree_prune.cpp.
_CALL = struct.Struct("@18P3q5d")
prepare = _prune = native_op(__file__, "tree_prune", _CALL)
_tally = native_op(__file__, "tree_prune", _CALL, "tally_paths")


def tree_prune(trees: Trees, belief: Belief, cost: torch.Tensor) -> tuple[Trees, torch.Tensor]:
    """See `reference.tree_prune`; all on the CPU, `cost` contiguous.

    Raises RuntimeError where the op cannot be compiled.
    """
    batch, rows = trees.tokens.shape
    assert cost.dtype == torch.float64 and cost.is_contiguous(), cost.dtype
    assert len(cost) > batch * (rows - 1), (cost.shape, trees.tokens.shape)
    kept = Trees.empty(batch, rows, trees.tokens.device)
    chance = torch.empty(batch, rows, dtype=torch.float64)
    written = addresses(*vars(kept).values(), cost, chance)
    _run(_prune(), trees, belief, [*written, 0, 0])
    return kept, chance


def tally_paths(
    trees: Trees, rows: torch.Tensor, length: torch.Tensor, belief: Belief, memory: float
) -> None:
    """See `reference.tally_paths`; all on the CPU.

    Raises RuntimeError where the op cannot be compiled.
    """
    assert rows.dtype == length.dtype == torch.int64, rows.dtype
    rows, length = rows.contiguous(), length.contiguous()
    paths = addresses(rows, length)
    _run(_tally(), trees, belief, [0] * 8 + paths, rows.shape[1], memory)


def _run(
    entry: Callable[[bytes], None],
    trees: Trees,
    belief: Belief,
    more: list[int],
    columns: int = 0,
    memory: float = 0.0,
) -> None:
    # Not all of `vars`: trees of a subclass have more.
    given = [getattr(trees, field.name).contiguous() for field in fields(Trees)]
    assert all(tensor.is_cpu for tensor in given), "the cpp implementation takes CPU tensors"
    for part, shape in ((belief.line, (2,)), (belief.information, (2, 2))):
        assert part.is_contiguous() and part.dtype == torch.float64 and part.is_cpu
        assert part.shape == shape, part.shape
    entry(
        _CALL.pack(
            *addresses(*given, belief.line, belief.information),
            *more,
            *trees.tokens.shape,
            columns,
            LEAST,
            MOST,
            PRIOR,
            STEP,
            memory,
        )
    )
