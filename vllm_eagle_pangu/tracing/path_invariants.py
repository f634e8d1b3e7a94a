# SPDX-License-Identifier: Apache-2.0
"""The invariants of an accepted path: it is the walk of the target's draws, and says so."""

from collections.abc import Iterator

import torch

from vllm_eagle_pangu.core.paths import (
    CHILDREN,
    DRAWS,
    PADDING,
    STARTS_AT_ROOT,
    TOKENS,
    AcceptedPaths,
)
from vllm_eagle_pangu.kernels.tree_accept import tree_accept
from vllm_eagle_pangu.tracing.dumped import DumpedPath, DumpedRequest, DumpedTree, Finding

LENGTH = "path: its length is 0 to D"
NODES = "path: its rows are nodes of the tree"
WALK = "path: it is the walk of the target's draws"


def check_path(request: DumpedRequest) -> Iterator[Finding]:
    """Every invariant of the request's path that breaks."""
    path = request.path
    if path is None:
        return
    if not 0 <= path.length < len(path.rows) or len(path.output) != len(path.rows):
        detail = f"length {path.length}, {len(path.rows)} rows, {len(path.output)} tokens"
        yield request.finding(LENGTH, [], detail)
        return
    if path.rows[0] != 0:
        yield request.finding(STARTS_AT_ROOT, [path.rows[0]], f"its rows are {path.accepted}")
    unused = range(path.length + 1, len(path.rows))
    if any(path.rows[i] != 0 or path.output[i] != -1 for i in unused):
        detail = f"length {path.length}, rows {path.rows}, output {path.output}"
        yield request.finding(PADDING, [path.rows[i] for i in unused if path.rows[i]], detail)
    if request.tree is not None:
        yield from _check_links(request, path, request.tree)
        yield from _check_walk(request, path, request.tree)
    yield from _check_draws(request, path)


def _check_links(request: DumpedRequest, path: DumpedPath, tree: DumpedTree) -> Iterator[Finding]:
    nodes = set(tree.nodes)
    strangers = [row for row in path.accepted[1:] if row not in nodes]
    if strangers:
        detail = f"its rows are {path.accepted}, the nodes {sorted(nodes)}"
        yield request.finding(NODES, strangers, detail)
    pairs = zip(path.accepted, path.accepted[1:], strict=False)
    torn = [(up, row) for up, row in pairs if row in nodes and tree.parent[row] != up]
    if torn:
        up, row = torn[0]
        detail = f"row {row} follows row {up} on the path, but its parent is {tree.parent[row]}"
        yield request.finding(CHILDREN, [row for _, row in torn], detail)
    emitted = zip(path.accepted[1:], path.output, strict=False)
    other = [(row, token) for row, token in emitted if row in nodes and tree.tokens[row] != token]
    if other:
        row, token = other[0]
        detail = f"row {row} has token {tree.tokens[row]}, {token} was emitted for it"
        yield request.finding(TOKENS, [row for row, _ in other], detail)


def _check_draws(request: DumpedRequest, path: DumpedPath) -> Iterator[Finding]:
    draws = request.draws
    if draws is None:
        return
    emitted = zip(path.accepted, path.output, strict=False)
    other = [(row, token) for row, token in emitted if not _drawn(draws, row, token)]
    if other:
        row, token = other[0]
        drawn = draws[row] if 0 <= row < len(draws) else "nothing"
        detail = f"{token} was emitted at row {row}, where the target drew {drawn}"
        yield request.finding(DRAWS, [row for row, _ in other], detail)


def _drawn(draws: list[int], row: int, token: int) -> bool:
    return 0 <= row < len(draws) and draws[row] == token


def _check_walk(request: DumpedRequest, path: DumpedPath, tree: DumpedTree) -> Iterator[Finding]:
    """Against the definition of tree_accept; of a tree that can be walked at all."""
    draws = request.draws
    if draws is None or len(draws) != tree.rows or not tree.well_linked:
        return
    depth, batch = len(path.rows) - 1, tree.batch()
    drawn = torch.tensor([draws])
    walk = tree_accept(batch.tokens, batch.parent, batch.valid, drawn, depth, "reference")
    expected = _accepted(walk)
    if expected != path.accepted:
        pairs = list(zip(expected, path.accepted, strict=False))
        same = next((i for i, (mine, theirs) in enumerate(pairs) if mine != theirs), len(pairs))
        rows = path.accepted[same : same + 1] or expected[same : same + 1]
        detail = f"the draws lead along rows {expected}, the path is {path.accepted}"
        yield request.finding(WALK, rows, detail)


def _accepted(walk: AcceptedPaths) -> list[int]:
    return walk.rows[0, : int(walk.length[0]) + 1].tolist()
