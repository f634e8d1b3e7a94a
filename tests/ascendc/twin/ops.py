# SPDX-License-Identifier: Apache-2.0
"""The AscendC ops on the twin, with their references' own arguments and results.

`cores`: how many the device has; `order` gives the order in which the launched ones run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from vllm_eagle_pangu.kernels.draft_batch.reference import DraftRows
from vllm_eagle_pangu.kernels.tree_accept.reference import AcceptedPaths
from vllm_eagle_pangu.kernels.tree_build.reference import Trees

from .launch import Argument, Role, TwinKernel, core_count

UNIFIED_BYTES = 192 * 1024

CoreOrder = Callable[[int], Sequence[int]]


@dataclass
class BuiltTrees:
    """Trees and what the AscendC op gives beside them.

    `mask: [B, R, ceil(R / 32)] int32`: bit j % 32 of word j // 32 is `visible[.., j]`.
    `first_child`, `next_sibling: [B, R] int64`: the lowest row among a row's children, and the next
    row with the same parent; 0 for none.
    """

    trees: Trees
    mask: torch.Tensor
    first_child: torch.Tensor
    next_sibling: torch.Tensor


def run_tree_accept(
    kernel: TwinKernel,
    tokens: torch.Tensor,
    parent: torch.Tensor,
    valid: torch.Tensor,
    draws: torch.Tensor,
    depth: int,
    cores: int = 1,
    order: CoreOrder = range,
) -> AcceptedPaths:
    """See `tree_accept.reference.tree_accept`; B >= 1."""
    batch, rows = draws.shape
    paths = AcceptedPaths(
        rows=poisoned(batch, depth + 1), length=poisoned(batch), output=poisoned(batch, depth + 1)
    )
    shape = {"batch": batch, "rows": rows, "depth": depth}
    inputs = {"tokens": tokens, "parent": parent, "valid": valid, "draws": draws}
    _run(kernel, shape, _arguments(inputs, vars(paths)), cores, order)
    return paths


def run_draft_batch(
    kernel: TwinKernel,
    input_ids: torch.Tensor,
    positions: torch.Tensor,
    query_start: torch.Tensor,
    is_tree: torch.Tensor,
    paths: AcceptedPaths,
    next_tokens: torch.Tensor,
    linear_slots: torch.Tensor,
    depth: int,
    rows: int,
    cores: int = 1,
    order: CoreOrder = range,
) -> DraftRows:
    """See `draft_batch.reference.draft_batch`.

    Where `rows` are more than the batch has, those beyond are padding: zeros, and slot -1.
    """
    requests = is_tree.shape[0]
    outputs = {
        "tokens": poisoned(rows),
        "positions": poisoned(rows),
        "hidden_rows": poisoned(rows),
        "slots": poisoned(rows),
        "query_start": poisoned(requests + 1),
        "sample_rows": poisoned(requests),
    }
    shape = {
        "requests": requests,
        "targetRows": input_ids.shape[0],
        "draftRows": rows,
        "depth": depth,
        "pathColumns": paths.rows.shape[1],
        "inputIdBytes": input_ids.element_size(),
        "queryStartBytes": query_start.element_size(),
    }
    inputs = {
        "input_ids": input_ids,
        "positions": positions,
        "query_start": query_start,
        "is_tree": is_tree,
        "path_rows": paths.rows,
        "path_length": paths.length,
        "path_output": paths.output,
        "next_tokens": next_tokens,
        "linear_slots": linear_slots,
    }
    _run(kernel, shape, _arguments(inputs, outputs), cores, order)
    return DraftRows(**outputs)


def run_tree_build(
    kernel: TwinKernel,
    root_tokens: torch.Tensor,
    tokens: torch.Tensor,
    scores: torch.Tensor,
    parents: torch.Tensor,
    width: int,
    depth: int,
    nodes: int,
    cores: int = 1,
    order: CoreOrder = range,
) -> BuiltTrees:
    """See `tree_build.reference.tree_build`; B >= 1."""
    batch, rows = tokens.shape[0], nodes + 1
    trees = {
        "tokens": poisoned(batch, rows),
        "parent": poisoned(batch, rows),
        "depth": poisoned(batch, rows),
        "valid": poisoned(batch, rows, dtype=torch.bool),
        "visible": poisoned(batch, rows, rows, dtype=torch.bool),
        "score": poisoned(batch, rows, dtype=torch.float32),
    }
    extra = {
        "mask": poisoned(batch, rows, (rows + 31) // 32, dtype=torch.int32),
        "first_child": poisoned(batch, rows),
        "next_sibling": poisoned(batch, rows),
    }
    sizes = {"batch": batch, "width": width, "depth": depth, "nodes": nodes}
    inputs = {
        "root_tokens": root_tokens,
        "tokens": tokens,
        "scores": scores,
        "parents": parents,
    }
    _run(kernel, sizes, _arguments(inputs, trees | extra), cores, order)
    return BuiltTrees(trees=Trees(**trees), **extra)


def run_kv_commit(
    kernel: TwinKernel,
    path_rows: torch.Tensor,
    linear_slots: torch.Tensor,
    scratch: Sequence[tuple[torch.Tensor, torch.Tensor]],
    cache: Sequence[tuple[torch.Tensor, torch.Tensor]],
    cores: int = 1,
    order: CoreOrder = range,
) -> torch.Tensor:
    """See `kv_commit.reference`: returns the slots `[B, R] int64` and writes them in `cache`.

    Per layer, keys and values: `scratch: [X, Hk, K]` with X >= B * R, `cache: [blocks, block_size,
    Hk, K]`, in any dtype.
    """
    batch, rows = linear_slots.shape
    slots = poisoned(batch, rows)
    page = cache[0][0]
    shape = {
        "batch": batch,
        "rows": rows,
        "pathColumns": path_rows.shape[1],
        "layers": len(cache),
        "rowBytes": page.shape[2] * page.shape[3] * page.element_size(),
        "scratchRows": scratch[0][0].shape[0],
        "cacheRows": page.shape[0] * page.shape[1],
    }
    arguments = [
        Argument("path_rows", path_rows),
        Argument("linear_slots", linear_slots),
        Argument("key_scratch", [key for key, _ in scratch]),
        Argument("value_scratch", [value for _, value in scratch]),
        Argument("key_cache", [key for key, _ in cache], Role.IN_OUT),
        Argument("value_cache", [value for _, value in cache], Role.IN_OUT),
        Argument("slots", slots, Role.OUTPUT),
        Argument("key_cache_out", role=Role.IN_OUT, alias=4),
        Argument("value_cache_out", role=Role.IN_OUT, alias=5),
    ]
    _run(kernel, shape, arguments, cores, order)
    return slots


def poisoned(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """An output that no op would leave as it is: every byte is 0x5A."""
    output = torch.empty(shape, dtype=dtype)
    output.view(torch.uint8).fill_(0x5A)
    return output


def _arguments(inputs: dict[str, torch.Tensor], outputs: dict[str, torch.Tensor]) -> list[Argument]:
    return [
        *(Argument(name, tensor.contiguous()) for name, tensor in inputs.items()),
        *(Argument(name, tensor, Role.OUTPUT) for name, tensor in outputs.items()),
    ]


def _run(
    kernel: TwinKernel,
    shape: dict[str, int],
    arguments: Sequence[Argument],
    cores: int,
    order: CoreOrder,
) -> None:
    tiling = kernel.tiling(shape | {"cores": cores, "unifiedBytes": UNIFIED_BYTES})
    kernel.launch(arguments, tiling, order(core_count(tiling)))
