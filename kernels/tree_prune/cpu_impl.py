# SPDX-License-Identifier: Apache-2.0
"""tree_prune and tally_paths in C++ (cpu/tree_prune.cpp): a step has no time for torch ops."""

from dataclasses import fields

import torch

from vllm_eagle_pangu.kernels.native import NativeOp
from vllm_eagle_pangu.kernels.tree_build.reference import Trees
from vllm_eagle_pangu.kernels.tree_prune.reference import LEAST, MOST, PRIOR, STEP, Belief

# Fields of `Call` in cpu/tree_prune.cpp.
_CALL = "@19P4q5d"
_prune = NativeOp(__file__, "tree_prune", _CALL)
_tally = NativeOp(__file__, "tree_prune", _CALL, "tally_paths")
prepare = _prune.prepare
# Of `Trees` alone: those of a subclass have more.
_COLUMNS = tuple(field.name for field in fields(Trees))


def tree_prune(
    trees: Trees, kind: torch.Tensor, belief: Belief, cost: torch.Tensor
) -> tuple[Trees, torch.Tensor]:
    """See `reference.tree_prune`; all on the CPU, `cost` contiguous.

    Raises RuntimeError where the op cannot be compiled.
    """
    batch, rows = trees.tokens.shape
    assert cost.dtype == torch.float64 and cost.is_contiguous(), cost.dtype
    assert len(cost) > batch * (rows - 1), (cost.shape, trees.tokens.shape)
    kept = Trees.empty(batch, rows, trees.tokens.device)
    chance = torch.empty(batch, rows, dtype=torch.float64)
    _run(_prune, trees, kind, belief, [*vars(kept).values(), cost, chance, None, None])
    return kept, chance


def tally_paths(
    trees: Trees,
    kind: torch.Tensor,
    rows: torch.Tensor,
    length: torch.Tensor,
    belief: Belief,
    memory: float,
) -> None:
    """See `reference.tally_paths`; all on the CPU.

    Raises RuntimeError where the op cannot be compiled.
    """
    assert rows.dtype == length.dtype == torch.int64, rows.dtype
    _run(_tally, trees, kind, belief, [None] * 8 + [rows, length], rows.shape[1], memory)


def _run(
    op: NativeOp,
    trees: Trees,
    kind: torch.Tensor,
    belief: Belief,
    more: list[torch.Tensor | None],
    columns: int = 0,
    memory: float = 0.0,
) -> None:
    given = [getattr(trees, name) for name in _COLUMNS]
    assert all(tensor.is_cpu for tensor in given), "the cpp implementation takes CPU tensors"
    kinds = len(belief.line)
    for part, shape in ((belief.line, (kinds, 3)), (belief.information, (kinds, 3, 3))):
        assert part.is_contiguous() and part.dtype == torch.float64 and part.is_cpu
        assert part.shape == shape, part.shape
    assert kind.dtype == torch.int64 and kind.shape == trees.tokens.shape[:1], kind.shape
    sizes = (*trees.tokens.shape, columns, kinds)
    constants = (LEAST, MOST, PRIOR, STEP)
    op(*given, kind, belief.line, belief.information, *more, *sizes, *constants, memory)
