# SPDX-License-Identifier: Apache-2.0
"""The invariants of a tree, row by row; named as `TreeBatch.check` names them."""

import math
from collections.abc import Callable, Iterator

from vllm_eagle_pangu.tracing.dumped import DumpedRequest, DumpedTree, Finding

MASK = "tree: a row sees itself and its ancestors"
SCHEDULED_ROWS = "tree: the valid rows are those that were scheduled"
SCHEDULED_TOKENS = "tree: the scheduled tokens are the drafted ones"

# By name: whether a row keeps the invariant, and what a row that does not looks like.
RowCheck = tuple[Callable[[DumpedTree, int], bool], Callable[[DumpedTree, int], str]]


def check_tree(request: DumpedRequest) -> Iterator[Finding]:
    """Every invariant of the request's tree that breaks."""
    tree = request.tree
    if tree is None:
        return
    named = set()
    for name, (holds, describe) in ROW_CHECKS.items():
        broken = [row for row in range(tree.rows) if not holds(tree, row)]
        if broken:
            named.add(name)
            yield request.finding(name, broken, f"row {broken[0]} {describe(tree, broken[0])}")
    missed = _missed(tree, named)
    if missed is not None:
        yield request.finding(missed, [], "TreeBatch.check says so")
    yield from _check_scheduled(request, tree)


def _missed(tree: DumpedTree, named: set[str]) -> str | None:
    """What `TreeBatch.check` finds and the row checks do not."""
    try:
        tree.batch().check()
    except AssertionError as error:
        return None if str(error) in named else str(error)
    except (IndexError, RuntimeError) as error:
        return None if named else f"tree: TreeBatch.check can look at it ({error})"
    return None


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


def _parent(tree: DumpedTree, row: int) -> int | None:
    """The parent of a node, None where it is no row or `row` no node."""
    parent = tree.parent[row]
    return parent if row > 0 and tree.valid[row] and tree.has_row(parent) else None


def _root_holds(tree: DumpedTree, row: int) -> bool:
    return row > 0 or (tree.valid[0] and tree.parent[0] == 0 and tree.depth[0] == 0)


def _parent_is_row(tree: DumpedTree, row: int) -> bool:
    return tree.has_row(tree.parent[row])


def _parent_before(tree: DumpedTree, row: int) -> bool:
    return row == 0 or not tree.valid[row] or tree.parent[row] < row


def _parent_valid(tree: DumpedTree, row: int) -> bool:
    parent = _parent(tree, row)
    return parent is None or tree.valid[parent]


def _one_deeper(tree: DumpedTree, row: int) -> bool:
    parent = _parent(tree, row)
    return parent is None or tree.depth[row] == tree.depth[parent] + 1


def _depth_in_range(tree: DumpedTree, row: int) -> bool:
    return tree.depth[row] <= tree.max_depth


def _padding_last(tree: DumpedTree, row: int) -> bool:
    return row == 0 or tree.valid[row - 1] or not tree.valid[row]


def _padding_empty(tree: DumpedTree, row: int) -> bool:
    empty = tree.tokens[row] == tree.parent[row] == tree.depth[row] == 0
    return tree.valid[row] or empty


def _padding_score(tree: DumpedTree, row: int) -> bool:
    return tree.valid[row] == (tree.score[row] != -math.inf)


def _no_nan(tree: DumpedTree, row: int) -> bool:
    return not math.isnan(tree.score[row])


def _score_falls(tree: DumpedTree, row: int) -> bool:
    parent = _parent(tree, row)
    return parent is None or not tree.score[row] > tree.score[parent]


def _sees_its_path(tree: DumpedTree, row: int) -> bool:
    expected = _expected_to_see(tree, row)
    return expected is None or _seen(tree, row) == expected


def _expected_to_see(tree: DumpedTree, row: int) -> set[int] | None:
    """None where the row's ancestors are not to be told."""
    path = tree.path_to(row) if tree.valid[row] else {0}
    return None if path is None else {ancestor for ancestor in path if tree.valid[ancestor]}


def _seen(tree: DumpedTree, row: int) -> set[int]:
    return {other for other in range(tree.rows) if tree.visible[row][other]}


def _describe_parent(tree: DumpedTree, row: int) -> str:
    return f"has parent {tree.parent[row]}; the tree has {tree.rows} rows"


def _describe_depth(tree: DumpedTree, row: int) -> str:
    parent = tree.parent[row]
    return f"has depth {tree.depth[row]}, its parent {parent} has {tree.depth[parent]}"


def _describe_validity(tree: DumpedTree, row: int) -> str:
    return f"has valid={tree.valid[row]}, parent {tree.parent[row]}"


def _describe_padding(tree: DumpedTree, row: int) -> str:
    return (
        f"has valid={tree.valid[row]}, token {tree.tokens[row]}, parent {tree.parent[row]}, "
        f"depth {tree.depth[row]}, score {tree.score[row]}"
    )


def _describe_score(tree: DumpedTree, row: int) -> str:
    parent = tree.parent[row]
    return f"has score {tree.score[row]}, its parent {parent} has {tree.score[parent]}"


def _describe_mask(tree: DumpedTree, row: int) -> str:
    seen, expected = _seen(tree, row), _expected_to_see(tree, row)
    text = f"sees rows {sorted(seen)}, its path is {sorted(expected or ())}"
    other = [up for up in range(row) if tree.valid[up] and _seen(tree, up) | {row} == seen]
    if other and other[-1] != tree.parent[row]:
        text += f", as a child of row {other[-1]} would; its parent is {tree.parent[row]}"
    return text


ROW_CHECKS: dict[str, RowCheck] = {
    "tree: the root is row 0, valid, its own parent, at depth 0": (_root_holds, _describe_padding),
    "tree: parents are rows": (_parent_is_row, _describe_parent),
    "tree: no cycle: a node's parent comes before it": (_parent_before, _describe_parent),
    "tree: a node's parent is valid": (_parent_valid, _describe_validity),
    "tree: a node is one deeper than its parent": (_one_deeper, _describe_depth),
    "tree: no node is deeper than max_depth": (_depth_in_range, _describe_padding),
    "tree: padding comes after the nodes": (_padding_last, _describe_validity),
    "tree: padding has token, parent and depth 0": (_padding_empty, _describe_padding),
    "tree: exactly the padding scores -inf": (_padding_score, _describe_padding),
    "tree: no score is NaN": (_no_nan, _describe_padding),
    "tree: no child outscores its parent": (_score_falls, _describe_score),
    MASK: (_sees_its_path, _describe_mask),
}
