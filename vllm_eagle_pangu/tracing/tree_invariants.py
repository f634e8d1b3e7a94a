# SPDX-License-Identifier: Apache-2.0
"""The invariants of a tree: those of `TreeBatch`, told by its rows, and of what was scheduled."""

from collections.abc import Iterator

from vllm_eagle_pangu.core.tree import MASK
from vllm_eagle_pangu.tracing.dumped import DumpedRequest, DumpedTree, Finding

SCORES = "tree: no child outscores its parent"
SCHEDULED_ROWS = "tree: the valid rows are those that were scheduled"
SCHEDULED_TOKENS = "tree: the scheduled tokens are the drafted ones"


def check_tree(request: DumpedRequest) -> Iterator[Finding]:
    """Every invariant of the request's tree that breaks."""
    tree = request.tree
    if tree is None:
        return
    kept = {name: held[0].tolist() for name, held in tree.batch().invariants().items()}
    kept[SCORES] = [not _outscores(tree, row) for row in range(tree.rows)]
    for name, held in kept.items():
        broken = [row for row in range(tree.rows) if not held[row]]
        if broken:
            describe = _describe_mask if name == MASK else _describe_row
            yield request.finding(name, broken, f"row {broken[0]} {describe(tree, broken[0])}")
    yield from _check_scheduled(request, tree)


def _check_scheduled(request: DumpedRequest, tree: DumpedTree) -> Iterator[Finding]:
    valid = sum(tree.valid)
    if request.count is not None and request.count != valid:
        detail = f"{request.count} rows were scheduled, {valid} are valid"
        yield request.finding(SCHEDULED_ROWS, [min(request.count, valid)], detail)
    scheduled = request.scheduled_token_ids
    if scheduled is None:
        return
    drafted = tree.tokens[1 : len(scheduled) + 1]
    if drafted != scheduled:
        pairs = list(zip(drafted, scheduled, strict=False))
        row = next((i for i, (mine, sent) in enumerate(pairs) if mine != sent), len(pairs)) + 1
        detail = f"drafted {drafted}, scheduled {scheduled}"
        yield request.finding(SCHEDULED_TOKENS, [row], detail)


def _outscores(tree: DumpedTree, row: int) -> bool:
    parent = tree.parent[row]
    is_child = row > 0 and tree.valid[row] and tree.has_row(parent)
    return is_child and tree.score[row] > tree.score[parent]


def _seen(tree: DumpedTree, row: int) -> set[int]:
    return {other for other in range(tree.rows) if tree.visible[row][other]}


def _describe_row(tree: DumpedTree, row: int) -> str:
    parent = tree.parent[row]
    text = f"has {_values(tree, row)}, parent {parent} of {tree.rows} rows"
    return f"{text}, which has {_values(tree, parent)}" if row and tree.has_row(parent) else text


def _values(tree: DumpedTree, row: int) -> str:
    valid, token, depth = tree.valid[row], tree.tokens[row], tree.depth[row]
    return f"valid={valid}, token {token}, depth {depth}, score {tree.score[row]}"


def _describe_mask(tree: DumpedTree, row: int) -> str:
    path = (tree.path_to(row) if tree.valid[row] else {0}) or set()
    seen, expected = _seen(tree, row), sorted(up for up in path if tree.valid[up])
    text = f"sees rows {sorted(seen)}, its path is {expected}"
    other = [up for up in range(row) if tree.valid[up] and _seen(tree, up) | {row} == seen]
    if other and other[-1] != tree.parent[row]:
        text += f", as a child of row {other[-1]} would; its parent is {tree.parent[row]}"
    return text
