# SPDX-License-Identifier: Apache-2.0
"""tree_accept, commit_slots and draft_batch, C++ or Triton, equal their references."""

import copy
import dataclasses
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch

from vllm_eagle_pangu.kernels import draft_batch, kv_commit, tree_accept
from vllm_eagle_pangu.kernels.draft_batch import cases as draft_cases
from vllm_eagle_pangu.kernels.kv_commit import cases as commit_cases
from vllm_eagle_pangu.kernels.tree_accept import cases as accept_cases

from ..trees import tree_of_parents
from .chosen import IMPLEMENTATION, random_cases
from .inputs import of_tree, tree_of

SEEDS = random_cases(500)
# Of these a few show it: each seed is as much work as one of SEEDS.
FEW_SEEDS = range(500 if IMPLEMENTATION == "cpp" else 30)
cpp_only = pytest.mark.skipif(IMPLEMENTATION != "cpp", reason="kernels check nothing on a device")
FACES: tuple[tuple[ModuleType, str, ModuleType], ...] = (
    (tree_accept, "tree_accept", accept_cases),
    (kv_commit, "commit_slots", commit_cases),
    (draft_batch, "draft_batch", draft_cases),
)


def flat(value: Any) -> list[Any]:
    """Tensors and numbers of nested dataclasses and dicts, in order."""
    if dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return [leaf for part in value.values() for leaf in flat(part)]
    return [value]


def assert_same(got: Any, expected: Any) -> None:
    for left, right in zip(flat(got), flat(expected), strict=True):
        if isinstance(right, torch.Tensor):
            assert left.dtype == right.dtype
            assert torch.equal(left, right), (left, right)
        else:
            assert left == right


def assert_equals_reference(face: Callable[..., Any], inputs: dict[str, Any]) -> None:
    before = copy.deepcopy(inputs)
    expected = face(**copy.deepcopy(inputs), implementation="reference")
    assert_same(face(**inputs, implementation=IMPLEMENTATION), expected)
    assert_same(inputs, before)


def random_accept_case(seed: int) -> accept_cases.AcceptCase:
    """B 1..5; vocabularies of 2 give twin siblings; half the trees' rows may be padding."""
    return accept_cases.AcceptCase(
        "random",
        rows=2 + seed % 23,
        depth=1 + seed % 7,
        batch=1 + seed % 5,
        vocab=(2, 5, 1000)[seed % 3],
        agreement=(0.6, 1.0)[seed % 2],
    )


def random_draft_case(seed: int) -> draft_cases.DraftBatchCase:
    """Ragged batches of 1..5 requests; trees may be cut to fewer rows than D+1.

    Some have a request without rows.
    """
    generator = torch.Generator().manual_seed(seed)
    batch = 1 + seed % 5
    rows = torch.randint(1, 14, (batch,), generator=generator)
    is_tree = torch.rand(batch, generator=generator) < 0.6
    tree_rows, chain_rows = rows.where(is_tree, 0), rows.where(~is_tree, 0)
    if seed % 7 == 3:
        chain_rows[seed // 7 % batch] = 0
    requests = tuple(tree_rows.tolist()), tuple(chain_rows.tolist())
    return draft_cases.DraftBatchCase("random", 1 + seed % 6, *requests)


@pytest.mark.parametrize(
    ("module", "name", "case", "cases"),
    [
        pytest.param(module, name, case, cases, id=f"{name}-{case.name}")
        for module, name, cases in FACES
        for case in cases.CASES
    ],
)
def test_cases_equal_the_reference(module, name, case, cases):
    for seed in range(3):
        assert_equals_reference(getattr(module, name), cases.make_inputs(case, seed))


def test_random_trees_equal_the_reference():
    for seed in SEEDS:
        inputs = accept_cases.make_inputs(random_accept_case(seed), seed)
        assert_equals_reference(tree_accept.tree_accept, inputs)


def test_trees_cut_to_any_prefix_equal_the_reference():
    for seed in FEW_SEEDS:
        inputs = accept_cases.make_inputs(random_accept_case(seed), seed)
        tree, generator = tree_of(inputs), torch.Generator().manual_seed(seed)
        counts = torch.randint(tree.rows, (tree.batch_size,), generator=generator)
        assert_equals_reference(tree_accept.tree_accept, inputs | of_tree(tree.cut(counts)))


def test_rows_that_are_not_valid_are_never_walked():
    """Padding rows that claim a parent and carry the token drawn at the root."""
    for seed in FEW_SEEDS:
        inputs = accept_cases.make_inputs(random_accept_case(seed), seed)
        valid, generator = inputs["valid"], torch.Generator().manual_seed(seed)
        expected = tree_accept.tree_accept(**inputs, implementation="reference")
        inputs["tokens"] = inputs["tokens"].where(valid, inputs["draws"][:, :1])
        noise = torch.randint(valid.shape[1], valid.shape, generator=generator)
        inputs["parent"] = inputs["parent"].where(valid, noise)
        assert_equals_reference(tree_accept.tree_accept, inputs)
        assert_same(tree_accept.tree_accept(**inputs, implementation=IMPLEMENTATION), expected)


def test_of_twin_siblings_the_lowest_row_is_walked():
    parent = torch.tensor([[0, 0, 0, 0, 1, 2, 3]])
    tree = tree_of_parents(torch.tensor([[9, 4, 5, 5, 6, 6, 6]]), parent, 3)
    draws = torch.tensor([[5, 6, 6, 6, 8, 7, 8]])
    paths = tree_accept.tree_accept(
        **of_tree(tree), draws=draws, depth=3, implementation=IMPLEMENTATION
    )
    assert paths.rows.tolist() == [[0, 2, 5, 0]]
    assert paths.output.tolist() == [[5, 6, 7, -1]]
    assert paths.length.tolist() == [2]


def test_depth_ends_a_walk_that_could_go_on():
    inputs = accept_cases.make_inputs(accept_cases.AcceptCase("deep", 33, 12, 5, agreement=1.0))
    for depth in range(13):
        assert_equals_reference(tree_accept.tree_accept, inputs | {"depth": depth})


def test_random_commits_equal_the_reference():
    for seed in SEEDS:
        inputs = commit_cases.make_inputs(random_accept_case(seed), seed)
        assert_equals_reference(kv_commit.commit_slots, inputs)


@cpp_only
def test_path_that_leaves_the_tree_is_refused_not_written():
    path, slots = torch.tensor([[0, 3, 0]]), torch.tensor([[7, 8, 9]])
    with pytest.raises(AssertionError, match="leaves its tree"):
        kv_commit.commit_slots(path, slots, implementation=IMPLEMENTATION)


def as_engine(inputs: dict[str, Any]) -> dict[str, Any]:
    """The dtypes of the engine's buffers."""
    return inputs | {"input_ids": inputs["input_ids"].int()}


def test_random_ragged_batches_equal_the_reference():
    for seed in SEEDS:
        inputs = draft_cases.make_inputs(random_draft_case(seed), seed)
        wide = inputs | {"query_start": inputs["query_start"].long()}
        for variant in (inputs, as_engine(inputs), wide) if seed in FEW_SEEDS else (inputs,):
            assert_equals_reference(draft_batch.draft_batch, variant)


def test_rows_of_longer_buffers_equal_the_reference():
    """A batch that starts inside longer inputs, as views of wider tensors."""
    for seed in range(30):
        inputs = as_engine(draft_cases.make_inputs(random_draft_case(seed), seed))
        inputs["query_start"] = inputs["query_start"] + 3
        for name in ("input_ids", "positions", "linear_slots"):
            padding = torch.full((5,), 77, dtype=inputs[name].dtype)
            longer = torch.cat((padding[:3], inputs[name], padding))
            inputs[name] = longer[:, None].repeat(1, 2)[:, 0]
        inputs["next_tokens"] = inputs["next_tokens"][:, None].repeat(1, 3)[:, 0]
        assert_equals_reference(draft_batch.draft_batch, inputs)


def test_strided_trees_and_slots_equal_the_reference():
    for seed in range(30):
        inputs = accept_cases.make_inputs(random_accept_case(seed), seed)
        for name in ("tokens", "parent", "valid", "draws"):
            inputs[name] = inputs[name].t().contiguous().t()
        assert_equals_reference(tree_accept.tree_accept, inputs)
        commit = commit_cases.make_inputs(random_accept_case(seed), seed)
        for name in ("path_rows", "linear_slots"):
            commit[name] = commit[name].t().contiguous().t()
        assert_equals_reference(kv_commit.commit_slots, commit)


@cpp_only
@pytest.mark.parametrize(
    "query_start", [[0, 0], [0, 14], [-1, 13]], ids=["no_root", "past_the_end", "before_the_start"]
)
def test_tree_rows_outside_the_batch_are_refused_not_read(query_start):
    inputs = draft_cases.make_inputs(draft_cases.CASES[0])
    inputs["query_start"] = torch.tensor(query_start, dtype=torch.int32)
    with pytest.raises(AssertionError):
        draft_batch.draft_batch(**inputs, implementation=IMPLEMENTATION)


@cpp_only
@pytest.mark.parametrize("more", [-1, 1])
def test_rows_that_are_not_as_many_as_the_batch_has_are_refused(more):
    inputs = draft_cases.make_inputs(draft_cases.CASES[6])
    inputs["rows"] += more
    for implementation in ("reference", IMPLEMENTATION):
        with pytest.raises(AssertionError):
            draft_batch.draft_batch(**inputs, implementation=implementation)


@pytest.mark.parametrize(("module", "name", "cases"), FACES, ids=[face[1] for face in FACES])
def test_unknown_implementation_is_refused_with_the_choices(module, name, cases):
    op, inputs = getattr(module, name), cases.make_inputs(cases.CASES[0])
    choices = f"{name}.*'fast'.*'reference', 'cpp', 'triton'"
    with pytest.raises(ValueError, match=choices):
        op(**inputs, implementation="fast")
    with pytest.raises(ValueError, match=choices):
        op.prepare("fast")
    op.prepare("reference")
    op.prepare(IMPLEMENTATION)
