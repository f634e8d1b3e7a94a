# SPDX-License-Identifier: Apache-2.0
"""The invariants of an accepted path, told by its rows, and that it is the draws' walk."""

from collections.abc import Iterator

import torch

from vllm_eagle_pangu.core.paths import LENGTH, AcceptedPaths, path_invariants
from vllm_eagle_pangu.core.tree import TreeBatch
from vllm_eagle_pangu.kernels.indices import index_range
from vllm_eagle_pangu.kernels.tree_accept import tree_accept
from vllm_eagle_pangu.tracing.dumped import DumpedRequest, Finding
from vllm_eagle_pangu.tracing.tree_invariants import first_difference

WALK = "path: it is the walk of the target's draws"


def check_path(request: DumpedRequest) -> Iterator[Finding]:
    """Every invariant of the request's path that breaks."""
    path, tree, draws = request.path, request.tree, request.draws
    if path is None:
        return
    length, rows, output = int(path.length), path.rows[0].tolist(), path.output[0].tolist()
    if not 0 <= length < len(rows):
        detail = f"length {length}, {len(rows)} rows, {len(output)} tokens"
        yield request.finding(LENGTH, [], detail)
        return
    for name, held in path_invariants(path, tree, draws).items():
        broken = [place for place, holds in enumerate(held[0].tolist()) if not holds]
        if broken:
            # Beyond the path, row 0 stands for none.
            offending = [rows[i] for i in broken if i <= length or rows[i]]
            detail = f"place {broken[0]} of rows {rows}, length {length}, output {output}"
            yield request.finding(name, offending, detail + _known_of(request, rows[broken[0]]))
    if tree is not None and draws is not None and draws.shape == tree.tokens.shape:
        yield from _check_walk(request, path, tree, draws)


def _known_of(request: DumpedRequest, row: int) -> str:
    tree, draws, text = request.tree, request.draws, ""
    if tree is not None and 0 <= row < tree.rows:
        columns = (tree.tokens, tree.parent, tree.valid)
        token, parent, valid = (column[0, row].item() for column in columns)
        text += f"; row {row} has token {token}, parent {parent}, valid={valid}"
    if draws is not None and 0 <= row < draws.shape[1]:
        text += f"; the target drew {int(draws[0, row])} there"
    return text


def _check_walk(
    request: DumpedRequest, path: AcceptedPaths, tree: TreeBatch, draws: torch.Tensor
) -> Iterator[Finding]:
    """Against the definition of tree_accept; of a tree that can be walked at all."""
    earlier = index_range(tree.rows, draws.device).clamp(min=1)
    if not bool(((tree.parent >= 0) & (tree.parent < earlier)).all()):
        return
    depth = path.rows.shape[1] - 1
    walk = tree_accept(tree.tokens, tree.parent, tree.valid, draws, depth, "reference")
    expected, accepted = (one.rows[0, : int(one.length) + 1].tolist() for one in (walk, path))
    if expected != accepted:
        same = first_difference(expected, accepted)
        rows = accepted[same : same + 1] or expected[same : same + 1]
        detail = f"the draws lead along rows {expected}, the path is {accepted}"
        yield request.finding(WALK, rows, detail)
