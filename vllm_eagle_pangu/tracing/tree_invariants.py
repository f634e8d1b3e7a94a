# SPDX-License-Identifier: Apache-2.0
"""The invariants of a tree: those of `TreeBatch`, told by its rows, and of what was scheduled."""

from collections.abc import Iterator

from vllm_eagle_pangu.core.tree import MASK, TreeBatch
from vllm_eagle_pangu.tracing.dumped import DumpedRequest, Finding

SCORES = "tree: no child outscores its parent"
SCHEDULED_ROWS = "tree: the valid rows are those that were scheduled"
SCHEDULED_TOKENS = "tree: the scheduled tokens are the drafted ones"


def check_tree(request: DumpedRequest) -> Iterator[Finding]:
    """Every invariant of the request's tree that breaks."""
    tree = request.tree
    if tree is None:
        return
    kept = {name: held[0].tolist() for name, held in tree.invariants().items()}
    kept[SCORES] = [not _outscores(tree, row) for row in range(tree.rows)]
    for name, held in kept.items():
        broken = [row for row in range(tree.rows) if not held[row]]
        if broken:
            describe = _describe_mask if name == MASK else _describe_row
            yield request.finding(name, broken, f"row {broken[0]} {describe(tree, broken[0])}")
    yield from _check_scheduled(request, tree)


def _check_scheduled(request: DumpedRequest, tree: TreeBatch) -> Iterator[Finding]:
    valid = int(tree.valid.sum())
    if request.count is not None and request.count != valid:
        detail = f"{request.count} rows were scheduled, {valid} are valid"
        yield request.finding(SCHEDULED_ROWS, [min(request.count, valid)], detail)
    scheduled = request.scheduled_token_ids
    if scheduled is None:
        return
    drafted = tree.tokens[0, 1 : len(scheduled) + 1].tolist()
    if drafted != scheduled:
        row = first_difference(drafted, scheduled) + 1
        detail = f"drafted {drafted}, scheduled {scheduled}"
        yield request.finding(SCHEDULED_TOKENS, [row], detail)


def first_difference(one: list[int], other: list[int]) -> int:
    """Where two lists differ first, which is the end of one if the other goes on."""
    pairs = list(zip(one, other, strict=False))
    return next((i for i, (mine, theirs) in enumerate(pairs) if mine != theirs), len(pairs))


def _outscores(tree: TreeBatch, row: int) -> bool:
    parent = int(tree.parent[0, row])
    is_child = row > 0 and tree.valid[0, row] and 0 <= parent < tree.rows
    return bool(is_child and tree.score[0, row] > tree.score[0, parent])


def _describe_row(tree: TreeBatch, row: int) -> str:
    parent = int(tree.parent[0, row])
    text = f"has {_values(tree, row)}, parent {parent} of {tree.rows} rows"
    has_parent = row > 0 and 0 <= parent < tree.rows
    return f"{text}, which has {_values(tree, parent)}" if has_parent else text


def _values(tree: TreeBatch, row: int) -> str:
    columns = (tree.valid, tree.tokens, tree.depth, tree.score)
    valid, token, depth, score = (column[0, row].item() for column in columns)
    return f"valid={valid}, token {token}, depth {depth}, score {score}"


def _describe_mask(tree: TreeBatch, row: int) -> str:
    """Of a row that walking upwards from comes to the root: of no other is the mask known."""
    parent, valid = tree.parent[0].tolist(), tree.valid[0].tolist()
    sees = [set(seen.nonzero()[:, 0].tolist()) for seen in tree.visible[0]]
    path, up = {0}, row if valid[row] else 0
    while up:
        path.add(up)
        up = parent[up]
    text = f"sees rows {sorted(sees[row])}, its path is {sorted(up for up in path if valid[up])}"
    other = [up for up in range(row) if valid[up] and sees[up] | {row} == sees[row]]
    if other and other[-1] != parent[row]:
        text += f", as a child of row {other[-1]} would; its parent is {parent[row]}"
    return text
