# SPDX-License-Identifier: Apache-2.0
"""Deliberate faults in the Triton ops but attention: comparing with the references catches each."""

import copy
import dataclasses
import importlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from vllm_eagle_pangu.kernels.draft_batch import cases as draft_cases
from vllm_eagle_pangu.kernels.kv_commit import cases as commit_cases
from vllm_eagle_pangu.kernels.top_children import cases as top_cases
from vllm_eagle_pangu.kernels.tree_accept import cases as accept_cases
from vllm_eagle_pangu.kernels.tree_accept import tree_accept
from vllm_eagle_pangu.kernels.tree_build import cases as build_cases
from vllm_eagle_pangu.kernels.tree_expand import cases as expand_cases
from vllm_eagle_pangu.kernels.tree_prune import cases as prune_cases

# As in test_draft_ops.py.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")

PACKAGE = "vllm_eagle_pangu.kernels"
_number = itertools.count()

ACCEPT = (
    ("& (row > 0)", "& (row >= 0)", "the root is its own child"),
    ("child = tl.min(", "child = tl.max(", "the highest of twin siblings"),
    ("(above == here) & (token", "(token", "a sibling's subtree leaks in"),
    ("& (step < depth)", "& (step <= depth)", "one level too deep"),
    ("!= 0) & (row", "!= 2) & (row", "padding is walked"),
    ("path += request * (depth + 1)", "path += request * depth", "stride D instead of D+1"),
    ("drawn, -1)", "drawn, 0)", "token 0 past the bonus"),
)
DRAFT = (
    ("depth + 1, other_count)", "depth, other_count)", "stride D instead of D+1"),
    ("tl.where(padded, -1, slot)", "slot", "rejected rows are written"),
    ("linear_row + 1, mask=inside", "linear_row, mask=inside", "chain tokens not shifted"),
    ("tl.minimum(index, last)", "index", "a cut tree reads the next request"),
    ("path_columns + index", "depth + index", "path of stride D"),
    ("tl.where(on_tree, row, linear_row)", "linear_row", "hidden states of linear rows"),
    ("start + length, mask", "start + last, mask", "samples from a tree's last row"),
    ("index < last, shifted", "index <= last, shifted", "next token of the next request"),
)
SLOTS = (
    ("& (node > 0)", "", "the root is committed"),
    ("slot[None, :] + 1, 0)", "slot[None, :], 0)", "slots off by one"),
    ("request * path_columns + step", "request * rows + step", "stride M instead of D+1"),
    ("found - 1", "found", "slot 0 where -1 belongs"),
    ("linear_slots + request * rows", "linear_slots + 0 * request", "another request's slots"),
)
PAGES = (
    ("if slot >= 0:", "if slot >= 1:", "slot 0 is not written"),
    ("slot % block_size", "slot % block_size * 0", "always the first place of a block"),
    ("slot // block_size", "slot // block_size * 0", "always block 0"),
    ("addresses += layer * 4", "addresses += layer * 0", "layer 0 for all"),
    ("tl.load(addresses + 3)", "tl.load(addresses + 2)", "values over keys"),
    ("(element < head_size)", "(element < head_size - 1)", "last element of a head left out"),
)
BUILD = (
    ("(other[:, None] < index[None, :])", "(other[:, None] > index[None, :])", "ties turned round"),
    ("rank < nodes", "rank < nodes - 1", "one node too few"),
    ("score = tl.minimum(score, other)", "score = score + 0 * other", "a child outranks"),
    (' & (score > float("-inf"))', "", "what cannot be drawn is kept"),
    ("for _ in range(depth - 2)", "for _ in range(depth - 3)", "an ancestor is not seen"),
    ("(column == parent_row[:, None])", "(column + 1 == parent_row[:, None])", "mask bit of k-1"),
    ("index[None, :] < position", "index[None, :] + 1 < position", "parent off by one"),
    ("(width * width)", "width", "levels of W candidates"),
)
TOP = (
    ("(at > index)", "(at >= index)", "a token again and again"),
    ("tl.min(tl.where(best == value, index, vocab))", "tl.max(tl.where(best == value, index, 0))",
     "of equal logits the highest"),
    ("tl.where(x > best, at", "tl.where(x >= best, at", "a lane keeps its last of equals"),
    ("(x < value) | (", "(x < value) & (", "of a lane only the best and its equals"),
    ("total * weight + 1.0", "total + 1.0", "sum not rescaled by a new best"),
    ("total + weight)", "total)", "only new bests are summed"),
    ("LEAST) - top))", "LEAST) - best))", "lanes summed as if equally good"),
    ("value - top - log_sum", "value - top", "not divided by the sum"),
    ('& (top < float("inf"))', "", "NaN for rows of infinite logits"),
    ('return tl.where(x > float("-inf"), x, float("-inf"))', "return x", "NaN is a logit"),
    ("index % LANES + tl", "(index + 1) % LANES + tl", "next best of the neighbour's lane"),
    ("row * row_stride", "row * vocab", "rows Vd apart"),
    ("tl.load(target_ids + chosen)", "chosen.to(tl.int64)", "tokens of the drafter"),
    ("tl.range(0, vocab, ", "tl.range(0, vocab - LANES, ", "last turn left out"),
)  # fmt: skip
EXPAND = (
    ("(other[:, None] < child[None, :])", "(other[:, None] > child[None, :])", "ties turned round"),
    ("tl.where(score > 0.0, 0.0, score)", "score", "a child outranks"),
    ('tl.where(score > float("-inf"), score, float("-inf"))', "score", "NaN is a score"),
    ("above_score + child // width", "above_score + child % width", "score of another parent"),
    ("rank += tl.sum", "rank = tl.sum", "only the last children are compared"),
    ("+ first + child", "+ child", "every level over the first"),
    ("request * width + child // width", "child // width", "parents of request 0"),
    ("chosen + first + 1", "chosen + first", "candidates off by one"),
    ("parent = chosen // width", "parent = chosen % width", "a child's place for its parent"),
    ("column == inherited + row", "column == row", "sees the first level for itself"),
    ("width + parent)[:, None]", "width + row)[:, None]", "sees what a neighbour's parent sees"),
    ("above_score += request * width", "above_score += 0 * request", "scores of request 0"),
)
PRUNE = (
    (
        "(other[:, None] < row[None, :])\n        before",
        "(other[:, None] > row[None, :])\n        before",
        "of equal children the last is the first",
    ),
    ("better | tied) & beside", "better | tied)", "the first of all nodes"),
    ("theirs > own[None, :]\n", "theirs < own[None, :]\n", "the least likely child"),
    ("before += tl.sum", "before = tl.sum", "only the last rows are compared"),
    ("_number(MOST), said)\n    #", "_number(LEAST), said)\n    #", "sure nodes are unlikely"),
    ("tl.log((1.0 - chance) *", "tl.log(1.0 + 0 *", "the head's probability for its odds"),
    ("* odds + tl.load", "+ odds + tl.load", "no slope"),
    ("lines + 3 * tl.load(kind + request)", "lines", "one kind for all"),
    ("tl.max(level) + 1", "tl.max(level)", "the last level is left out"),
    ("factor * found", "factor", "of its path the last node alone"),
    ("tl.where(real, found, 0.0)", "found", "padding has a chance"),
    ("found >= tl.load(least)", "found > tl.load(least)", "the last one that pays is left"),
    (
        "tied = (theirs == own[None, :]) & (other[:, None] < row[None, :])\n        earlier",
        "tied = (theirs == own[None, :]) & (other[:, None] > row[None, :])\n        earlier",
        "ties turned round",
    ),
    ("place += tl.sum", "place = tl.sum", "only the last rows come before"),
    ("parent_place.to(tl.int64)", "above.to(tl.int64)", "parents where they were"),
    ("rows + column_place[None, :]", "rows + column[None, :]", "columns where they were"),
    ("(column == 0)[None, :], 1, sees", "(column == 0)[None, :], sees, sees", "root not seen"),
    ("cost[1 : len(falling) + 1]", "cost[: len(falling)]", "cost of a node less"),
    ("descending=True", "descending=False", "the worst first"),
    ("masked_fill(falling <= 0, -torch.inf)", "clone()", "nodes of no chance for nothing"),
)
TALLY = (
    ("tl.load(length + request).to(tl.int32) + 1", "tl.load(length + request).to(tl.int32)",
     "the path without its end"),
    ("path += request * columns", "path += request * rows", "stride R instead of D+1"),
    ("(above == here)", "(row == here)", "the accepted alone were tried"),
    ("on_path.to(tl.float64) - chance", "on_path.to(tl.float64)", "nothing was expected"),
    ("chance * (1.0 - chance)", "chance", "information of a Poisson"),
    ("-1) == which)", "-1) >= 0)", "one kind for all"),
    ("_sum_of(sums, 0, mine) * tl.log", "tl.log", "forgets once a step"),
    ("known_00 + PRIOR", "known_00 + STEP", "half the prior"),
    ("square_11 - times_1 * known_01 -", "square_11 -", "not eliminated"),
    ("rest_2 - rest_21 * step_1", "rest_2", "other numbers as if alone"),
    ("tl.where(step_1 < -slope, -slope, step_1)", "step_1", "likelier, so less likely"),
    ("slope + _within_step(step_1)", "slope + step_1", "steps without bounds"),
    ("tl.store(information + 6, known_02)", "tl.store(information + 6, known_12)", "not symmetric"),
)  # fmt: skip


def accepts() -> Iterator[dict[str, Any]]:
    for case in (
        accept_cases.AcceptCase("deep", 17, 6, batch=3, agreement=1.0),
        accept_cases.AcceptCase("twins", 15, 4, batch=4, vocab=2),
        accept_cases.AcceptCase("rejected", 20, 3, batch=3, agreement=0.0),
        accept_cases.AcceptCase("one_token", 9, 3, batch=2, vocab=1),
    ):
        inputs = accept_cases.make_inputs(case)
        yield inputs
        # Rows that are not valid but look like children of the root.
        valid = inputs["valid"] & (torch.arange(case.rows) <= 2)
        tokens = inputs["tokens"].where(valid, inputs["draws"][:, :1])
        yield {
            **inputs,
            "tokens": tokens,
            "parent": inputs["parent"].where(valid, 0),
            "valid": valid,
        }
        yield {**inputs, "depth": 1}


def drafts() -> Iterator[dict[str, Any]]:
    for case in draft_cases.CASES:
        yield draft_cases.make_inputs(case)


def commits() -> Iterator[dict[str, Any]]:
    for case in (
        accept_cases.AcceptCase("deep", 17, 6, batch=3, agreement=1.0),
        accept_cases.AcceptCase("chain", 6, 5, batch=3),
    ):
        yield commit_cases.make_inputs(case)


def pages() -> Iterator[dict[str, Any]]:
    for name in ("odd_sizes", "everything_kept"):
        (case,) = (case for case in commit_cases.PAGES_CASES if case.name == name)
        case = dataclasses.replace(case, rows=9, kept=1.0, block_size=3)
        yield commit_cases.make_page_inputs(case)


def builds() -> Iterator[dict[str, Any]]:
    for scores in ("random", "ties", "rising", "holes"):
        case = build_cases.BuildCase(scores, 3, 5, 30, batch=2, scores=scores)
        yield build_cases.make_inputs(case, seed=3)


def tops() -> Iterator[dict[str, Any]]:
    for case in (
        top_cases.TopCase("ties", 3, 9001, 8, "ties", mapped=True),
        top_cases.TopCase("rising", 2, 9001, 5, "rising", torch.bfloat16),
        top_cases.TopCase("holes", 3, 300, 5, "holes"),
        top_cases.TopCase("infinite", 2, 300, 5, "infinite", mapped=True),
    ):
        yield top_cases.make_inputs(case)
    # The best ones share a lane, and tie in two rows.
    inputs = top_cases.make_inputs(top_cases.TopCase("one_lane", 3, 9001, 4))
    inputs["logits"][:, 7::4096] = torch.tensor([[50.0] * 3, [40, 50, 40], [40, 41, 39]])
    yield inputs
    apart = top_cases.make_inputs(top_cases.TopCase("apart", 5, 400, 3))
    yield {**apart, "logits": apart["logits"][::2, 40:201]}


def expands() -> Iterator[dict[str, Any]]:
    for case in expand_cases.CASES:
        yield expand_cases.make_inputs(case)


def prunes() -> Iterator[dict[str, Any]]:
    for case in (
        prune_cases.PruneCase("blocks", 70, 6, batch=2, row_cost=0.02, kinds=2),
        prune_cases.PruneCase("some_pay", 17, 5, batch=4, row_cost=0.2),
        prune_cases.PruneCase("all_sure", 17, 5, batch=3, sure=True),
        prune_cases.PruneCase("too_dear", 17, 5, batch=3, row_cost=1.5),
        prune_cases.PruneCase("free", 17, 5, batch=3, row_cost=0.0, kinds=3),
    ):
        inputs = prune_cases.make_inputs(case)
        yield inputs
    # Nodes of two trees have no chance, and what the third one's cost is more than all cost.
    inputs["kind"][:] = torch.arange(3)
    inputs["belief"].line[1:] = torch.tensor([-1000.0, 0.0, 0.0])
    inputs["cost"][1:-1] = 100.0
    yield inputs
    twins = prune_cases.make_inputs(prune_cases.PruneCase("twins", 9, 2, row_cost=0.05))
    trees = twins["trees"]
    trees.score[trees.depth == 1] = -1.0
    yield twins


def tallies() -> Iterator[dict[str, Any]]:
    """The paths that random draws accept; with a line that is sure, and wrong, too."""
    for case in (
        prune_cases.PruneCase("two_kinds", 17, 5, batch=5, kinds=2),
        prune_cases.PruneCase("blocks", 70, 6, batch=2),
    ):
        inputs = prune_cases.make_inputs(case)
        trees = inputs["trees"]
        draws = trees.tokens.roll(-1, dims=1)
        paths = tree_accept(trees.tokens, trees.parent, trees.valid, draws, case.depth)
        given = {name: inputs[name] for name in ("trees", "kind", "belief")}
        given |= {"rows": paths.rows, "length": paths.length, "memory": 0.99}
        yield given
        for line in ([9.0, 0.1, 0.0], [-5.0, 0.02, 3.0]):
            inputs = copy.deepcopy(given)
            inputs["belief"].line[:] = torch.tensor(line)
            inputs["belief"].information[:] = 0.0
            # The head thinks little of most.
            inputs["trees"].score[:] *= 4.0
            yield inputs


OPS = (
    ("tree_accept", "tree_accept", accepts, ACCEPT),
    ("draft_batch", "draft_batch", drafts, DRAFT),
    ("kv_commit", "commit_slots", commits, SLOTS),
    ("kv_commit", "commit_pages", pages, PAGES),
    ("tree_build", "tree_build", builds, BUILD),
    ("top_children", "top_children", tops, TOP),
    ("tree_expand", "tree_expand", expands, EXPAND),
    ("tree_prune", "tree_prune", prunes, PRUNE),
    ("tree_prune", "tally_paths", tallies, TALLY),
)
FAULTS = [
    pytest.param(package, op, inputs, old, new, id=f"{op}: {what}")
    for package, op, inputs, faults in OPS
    for old, new, what in faults
]


def leaves(value: Any) -> list[torch.Tensor]:
    """The tensors of a result."""
    if isinstance(value, torch.Tensor):
        return [value.contiguous()]
    if dataclasses.is_dataclass(value):
        value = [getattr(value, field.name) for field in dataclasses.fields(value)]
    if isinstance(value, list | tuple):
        return [leaf for part in value for leaf in leaves(part)]
    return []


def results(function: Callable[..., Any], inputs: dict[str, Any]) -> list[torch.Tensor]:
    given = copy.deepcopy(inputs)
    if "layers" in given:
        # Copied tensors lie elsewhere: take their addresses anew.
        given["layers"].__post_init__()
    result = function(**given)
    if "layers" in given:
        pairs = given["layers"].pages
        result = [side for pair in pairs for side in (pair.key, pair.value)]
    return leaves([result, given.get("candidates"), given.get("belief")])


def assert_equal(function: Callable[..., Any], package: str, op: str, inputs: Callable) -> None:
    reference = getattr(importlib.import_module(f"{PACKAGE}.{package}.reference"), op)
    for given in inputs():
        got, expected = results(function, given), results(reference, given)
        assert len(got) == len(expected) > 0
        assert all(map(TOLERANT.get(op, same_bytes), got, expected))


def same_bytes(mine: torch.Tensor, theirs: torch.Tensor) -> bool:
    """So that NaN equals NaN."""
    return torch.equal(mine.view(torch.uint8), theirs.view(torch.uint8))


def same_log_probabilities(mine: torch.Tensor, theirs: torch.Tensor) -> bool:
    return torch.allclose(mine, theirs, rtol=0, atol=top_cases.TOLERANCE)


def same_chances(mine: torch.Tensor, theirs: torch.Tensor) -> bool:
    if mine.dtype != torch.float64:
        return same_bytes(mine, theirs)
    tolerance = prune_cases.TOLERANCE
    return torch.allclose(mine, theirs, rtol=tolerance, atol=tolerance)


TOLERANT = {
    "top_children": same_log_probabilities,
    "tree_prune": same_chances,
    "tally_paths": same_chances,
}


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Callable]:
    """`load(package, op, old, new)`: the op from a copy of its Triton file with a text replaced."""
    monkeypatch.syspath_prepend(tmp_path)

    def load(package: str, op: str, old: str = "", new: str = "") -> Callable[..., Any]:
        original = importlib.import_module(f"{PACKAGE}.{package}.triton_impl")
        source = Path(original.__file__).read_text()
        assert old in source, f"{old!r} is not in {package}"
        name = f"mutated_op_{next(_number)}"
        (tmp_path / f"{name}.py").write_text(source.replace(old, new) if old else source)
        importlib.invalidate_caches()
        return getattr(importlib.import_module(name), op)

    return load


@pytest.mark.parametrize(
    ("package", "op", "inputs"), [op[:3] for op in OPS], ids=[op[1] for op in OPS]
)
def test_the_unchanged_kernels_pass(load, package, op, inputs):
    assert_equal(load(package, op), package, op, inputs)


@pytest.mark.parametrize(("package", "op", "inputs", "old", "new"), FAULTS)
def test_a_fault_is_caught(load, package, op, inputs, old, new):
    mutant = load(package, op, old, new)
    with pytest.raises(AssertionError):
        assert_equal(mutant, package, op, inputs)
