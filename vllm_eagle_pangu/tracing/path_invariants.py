# SPDX-License-Identifier: Apache-2.0
"""The invariants of an accepted path, told by its rows, and that it is the draws' walk."""

from collections.abc import Iterator

import torch

from vllm_eagle_pangu.core.paths import LENGTH, path_invariants
from vllm_eagle_pangu.kernels.tree_accept import tree_accept
from vllm_eagle_pangu.tracing.dumped import DumpedPath, DumpedRequest, DumpedTree, Finding

WALK = "path: it is the walk of the target's draws"


def check_path(request: DumpedRequest) -> Iterator[Finding]:
    """Every invariant of the request's path that breaks."""
    path, tree, draws = request.path, request.tree, request.draws
    if path is None:
        return
    if not 0 <= path.length < len(path.rows) or len(path.output) != len(path.rows):
        detail = f"length {path.length}, {len(path.rows)} rows, {len(path.output)} tokens"
        yield request.finding(LENGTH, [], detail)
        return
    drawn = None if draws is None else torch.tensor([draws])
    kept = path_invariants(path.batch(), None if tree is None else tree.batch(), drawn)
    for name, held in kept.items():
        broken = [place for place, holds in enumerate(held[0].tolist()) if not holds]
        if broken:
            # Beyond the path, row 0 stands for none.
            rows = [path.rows[i] for i in broken if i <= path.length or path.rows[i]]
            yield request.finding(name, rows, _describe(request, path, broken[0]))
    if tree is not None:
        yield from _check_walk(request, path, tree)


def _describe(request: DumpedRequest, path: DumpedPath, place: int) -> str:
    row, tree, draws = path.rows[place], request.tree, request.draws
    text = f"place {place} of rows {path.rows}, length {path.length}, output {path.output}"
    if tree is not None and tree.has_row(row):
        text += f"; row {row} has token {tree.tokens[row]}, parent {tree.parent[row]}"
        text += f", valid={tree.valid[row]}"
    if draws is not None and 0 <= row < len(draws):
        text += f"; the target drew {draws[row]} there"
    return text


def _check_walk(request: DumpedRequest, path: DumpedPath, tree: DumpedTree) -> Iterator[Finding]:
    """Against the definition of tree_accept; of a tree that can be walked at all."""
    draws = request.draws
    if draws is None or len(draws) != tree.rows or not tree.well_linked:
        return
    depth, batch = len(path.rows) - 1, tree.batch()
    drawn = torch.tensor([draws])
    walk = tree_accept(batch.tokens, batch.parent, batch.valid, drawn, depth, "reference")
    expected = walk.rows[0, : int(walk.length[0]) + 1].tolist()
    if expected != path.accepted:
        pairs = list(zip(expected, path.accepted, strict=False))
        same = next((i for i, (mine, theirs) in enumerate(pairs) if mine != theirs), len(pairs))
        rows = path.accepted[same : same + 1] or expected[same : same + 1]
        detail = f"the draws lead along rows {expected}, the path is {path.accepted}"
        yield request.finding(WALK, rows, detail)
