# SPDX-License-Identifier: Apache-2.0
"""Runs a failed step again from its dump, in reference mode and without the engine.

Invariants of trees and paths are those that the engine asserts, told by the rows that offend.
"""

from collections.abc import Iterator

import torch

from vllm_eagle_pangu.core.paths import LENGTH, AcceptedPaths, path_invariants
from vllm_eagle_pangu.core.tree import MASK, TreeBatch
from vllm_eagle_pangu.kernels.indices import index_range
from vllm_eagle_pangu.kernels.tree_accept.reference import tree_accept
from vllm_eagle_pangu.ties import parting
from vllm_eagle_pangu.tracing.cache_invariants import check_cache, check_written_once
from vllm_eagle_pangu.tracing.dumped import Dump, DumpedRequest, Finding

SCORES = "tree: no child outscores its parent"
SCHEDULED_ROWS = "tree: the valid rows are those that were scheduled"
SCHEDULED_TOKENS = "tree: the scheduled tokens are the drafted ones"
WALK = "path: it is the walk of the target's draws"


def check(dump: Dump) -> list[Finding]:
    """Every invariant that breaks in the dump, one finding per request and invariant.

    What the dump does not know is not checked; `unchecked` says what that is.
    """
    findings: list[Finding] = []
    for request in dump.requests:
        findings += [*_check_tree(request), *_check_path(request), *check_cache(request)]
    return [*findings, *check_written_once(dump.requests)]


def unchecked(dump: Dump) -> Iterator[str]:
    """What was not known of some request, so that its invariants went unchecked."""
    of_a_cache = ("linear_slots", "commit_slots", "block_ids")
    for name in ("tree", "path", "draws", "token_ids", "prefix_len", "count", *of_a_cache):
        missing = [one.request for one in dump.requests if not one.knows(name)]
        if missing:
            yield f"{name} of {', '.join(missing)}"
    yield from dump.unreadable


def _check_tree(request: DumpedRequest) -> Iterator[Finding]:
    """Every invariant of the request's tree that breaks."""
    tree = request.tree
    if tree is None:
        return
    row = index_range(tree.rows, tree.parent.device)
    parent = tree.parent.where((tree.parent >= 0) & (tree.parent < tree.rows), row)
    outscores = tree.valid & (row > 0) & (tree.score > tree.score.gather(1, parent))
    for name, held in (tree.invariants() | {SCORES: ~outscores}).items():
        broken = (~held[0]).nonzero()[:, 0].tolist()
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
        row = parting(drafted, scheduled) + 1
        detail = f"drafted {drafted}, scheduled {scheduled}"
        yield request.finding(SCHEDULED_TOKENS, [row], detail)


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


def _check_path(request: DumpedRequest) -> Iterator[Finding]:
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
    walk = tree_accept(tree.tokens, tree.parent, tree.valid, draws, depth)
    expected, accepted = (one.rows[0, : int(one.length) + 1].tolist() for one in (walk, path))
    if expected != accepted:
        same = parting(expected, accepted)
        rows = accepted[same : same + 1] or expected[same : same + 1]
        detail = f"the draws lead along rows {expected}, the path is {accepted}"
        yield request.finding(WALK, rows, detail)
