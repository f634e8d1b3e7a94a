# SPDX-License-Identifier: Apache-2.0
"""Tiling refuses what an op cannot hold, with limit and value; kernels survive malformed input."""

import copy

import pytest
import torch

from vllm_eagle_pangu.core.tree import TreeBatch
from vllm_eagle_pangu.kernels.draft_batch import cases as draft_cases
from vllm_eagle_pangu.kernels.draft_batch.reference import draft_batch
from vllm_eagle_pangu.kernels.tree_accept import cases as accept_cases
from vllm_eagle_pangu.kernels.tree_build import cases as build_cases

from .checks import OPS, assert_same, flat, kernel_of, with_layers
from .twin import ops as twin

DEVICE = {"cores": 20, "unifiedBytes": twin.UNIFIED_BYTES}
SHAPES = {
    "tree_accept": {"batch": 8, "rows": 64, "depth": 6} | DEVICE,
    "draft_batch": {
        "requests": 8,
        "targetRows": 512,
        "draftRows": 56,
        "depth": 6,
        "pathColumns": 7,
        "inputIdBytes": 4,
        "queryStartBytes": 4,
    }
    | DEVICE,
    "tree_build": {"batch": 8, "width": 8, "depth": 6, "nodes": 63} | DEVICE,
    "kv_commit": {
        "batch": 8,
        "rows": 64,
        "pathColumns": 7,
        "layers": 2,
        "rowBytes": 2048,
        "scratchRows": 512,
        "cacheRows": 4096,
    }
    | DEVICE,
}

REFUSED = [
    ("tree_accept", {"batch": 0}, "B=0 is not in 1 to 4096"),
    ("tree_accept", {"batch": 4097}, "B=4097 is not in 1 to 4096"),
    ("tree_accept", {"rows": 0}, "R=0 is not in 1 to 1024"),
    ("tree_accept", {"rows": 1025}, "R=1025 is not in 1 to 1024"),
    ("tree_accept", {"depth": -1}, "D=-1 is not in 0 to 128"),
    ("tree_accept", {"depth": 129}, "D=129 is not in 0 to 128"),
    ("tree_accept", {"cores": 0}, "cores=0"),
    ("tree_accept", {"unifiedBytes": 4096}, "unified buffer bytes=6[0-9]* is not in 0 to 4096"),
    ("draft_batch", {"requests": 0}, "B=0 is not in 1 to 2048"),
    ("draft_batch", {"requests": 2049}, "B=2049 is not in 1 to 2048"),
    ("draft_batch", {"targetRows": 0}, "N=0 is not in 1 to 1048576"),
    ("draft_batch", {"targetRows": 1048577}, "N=1048577 is not in 1 to 1048576"),
    ("draft_batch", {"draftRows": 0}, "N'=0 is not in 1 to 1048576"),
    ("draft_batch", {"draftRows": 1048577}, "N'=1048577 is not in 1 to 1048576"),
    ("draft_batch", {"depth": 129}, "D=129 is not in 0 to 128"),
    ("draft_batch", {"pathColumns": 6}, "path columns=6 is not in 7 to"),
    ("draft_batch", {"inputIdBytes": 2}, "bytes of an input id=2 is not in 4 to 8"),
    ("draft_batch", {"queryStartBytes": 16}, "bytes of a query start=16 is not in 4 to 8"),
    ("draft_batch", {"cores": 0}, "cores=0"),
    ("draft_batch", {"unifiedBytes": 8192}, "unified buffer bytes=[0-9]* is not in 0 to 8192"),
    ("tree_build", {"batch": 0}, "B=0 is not in 1 to 4096"),
    ("tree_build", {"width": 65}, "W=65 is not in 1 to 64"),
    ("tree_build", {"depth": 0}, "D=0 is not in 1 to 128"),
    ("tree_build", {"depth": 70}, "candidates=4424 is not in 1 to 4096"),
    ("tree_build", {"nodes": 0}, "M=0 is not in 1 to 328"),
    ("tree_build", {"nodes": 329}, "M=329 is not in 1 to 328"),
    ("tree_build", {"depth": 12, "nodes": 384}, "rows=385 is not in 2 to 384"),
    (
        "tree_build",
        {"depth": 30, "nodes": 383},
        "unified buffer bytes=[0-9]* is not in 0 to 196608",
    ),
    ("tree_build", {"cores": -1}, "cores=-1"),
    ("kv_commit", {"batch": 0}, "B=0 is not in 1 to 4096"),
    ("kv_commit", {"rows": 1025}, "R=1025 is not in 1 to 1024"),
    ("kv_commit", {"pathColumns": 130}, "path columns=130 is not in 1 to 129"),
    ("kv_commit", {"layers": 0}, "L=0 is not in 1 to 256"),
    ("kv_commit", {"layers": 257}, "L=257 is not in 1 to 256"),
    ("kv_commit", {"rowBytes": 16}, "bytes of a K/V row=16 is not in 32 to"),
    (
        "kv_commit",
        {"rowBytes": 80},
        "bytes of a K/V row beyond whole 32-byte blocks=16 is not in 0 to 0",
    ),
    ("kv_commit", {"scratchRows": 511}, "scratch rows=511 is not in 512 to"),
    ("kv_commit", {"cacheRows": 0}, "cache rows=0"),
    ("kv_commit", {"cores": 0}, "cores=0"),
    ("kv_commit", {"unifiedBytes": 4096}, "unified buffer bytes=[0-9]* is not in 0 to 4096"),
]


@pytest.mark.parametrize("op", SHAPES)
def test_tiling_accepts_the_presets(op):
    kernel_of(op).tiling(SHAPES[op])


@pytest.mark.parametrize(("op", "change", "message"), REFUSED)
def test_tiling_refuses_with_limit_and_value(op, change, message):
    with pytest.raises(ValueError, match=f"{op}: {message}"):
        kernel_of(op).tiling(SHAPES[op] | change)


def accepts(op: str, **change: int) -> bool:
    try:
        kernel_of(op).tiling(SHAPES[op] | change)
    except ValueError:
        return False
    return True


def test_the_largest_tree_that_tiling_accepts_fits_the_unified_buffer():
    rows = max(n for n in range(1, 1025) if accepts("tree_accept", rows=n, depth=128))
    assert 1024 >= rows > 1000
    inputs = accept_cases.make_inputs(accept_cases.AcceptCase("large", 300, 40, batch=5))
    for name in ("tokens", "parent", "valid", "draws"):
        inputs[name] = torch.nn.functional.pad(inputs[name], (0, rows - 300))
    OPS["tree_accept"].verify(kernel_of("tree_accept"), inputs | {"depth": 128}, 2, range)


def test_the_largest_built_tree_that_tiling_accepts_fits_the_unified_buffer():
    sizes = {"width": 16, "depth": 12}
    nodes = max(n for n in range(1, 384) if accepts("tree_build", nodes=n, **sizes))
    case = build_cases.BuildCase("large", **sizes, nodes=nodes, batch=2)
    assert 200 < nodes < 383
    OPS["tree_build"].verify(kernel_of("tree_build"), build_cases.make_inputs(case), 2, range)


def test_the_most_requests_that_tiling_accepts_fit_the_unified_buffer():
    assert accepts("draft_batch", requests=2048, cores=1, depth=128, pathColumns=129)
    case = draft_cases.DraftBatchCase("many", 4, (0, 3) * 1024, (1, 0) * 1024)
    OPS["draft_batch"].verify(kernel_of("draft_batch"), draft_cases.make_inputs(case), 1, range)


def test_long_paths_and_trees_of_kv_commit_fit_the_unified_buffer():
    rows = max(n for n in range(1, 1025) if accepts("kv_commit", rows=n, scratchRows=10**6))
    path = torch.randperm(rows - 1)[None, :6] + 1
    path[:, 0] = 0
    inputs = {"path_rows": path, "linear_slots": torch.randperm(rows)[None]}
    OPS["kv_commit"].verify(kernel_of("kv_commit"), with_layers(inputs, 0), 3, range)


# ---- more or fewer rows than the batch has ----

(MIXED,) = (case for case in draft_cases.CASES if case.name == "mixed")


@pytest.mark.parametrize("extra", [1, 7, 600])
def test_drafter_rows_beyond_the_batch_are_padding(extra):
    inputs = draft_cases.make_inputs(MIXED)
    expected = draft_batch(**inputs)
    rows = inputs["rows"]
    inputs["rows"] += extra
    got = twin.run_draft_batch(kernel_of("draft_batch"), **inputs, cores=3)
    for name in ("tokens", "positions", "hidden_rows", "slots"):
        mine, theirs = getattr(got, name), getattr(expected, name)
        assert_same(mine[:rows], theirs)
        assert (mine[rows:] == (-1 if name == "slots" else 0)).all()
    assert_same((got.query_start, got.sample_rows), (expected.query_start, expected.sample_rows))


@pytest.mark.parametrize("missing", [1, 20, 60])
def test_drafter_rows_that_the_host_did_not_ask_for_are_not_stored(missing):
    inputs = draft_cases.make_inputs(MIXED)
    expected = draft_batch(**inputs)
    inputs["rows"] -= missing
    got = twin.run_draft_batch(kernel_of("draft_batch"), **inputs, cores=3)
    assert_same(flat(got)[:4], [tensor[: inputs["rows"]] for tensor in flat(expected)[:4]])


# ---- malformed input: no access outside, which the twin would report ----


@pytest.mark.parametrize(
    "query_start", [[0, 0], [0, 14], [-1, 13], [5, 2]], ids=["empty", "past", "before", "falling"]
)
@pytest.mark.parametrize("tree", [True, False])
def test_rows_outside_the_batch_are_not_read(query_start, tree):
    inputs = draft_cases.make_inputs(draft_cases.CASES[0])
    inputs["query_start"] = torch.tensor(query_start, dtype=torch.int32)
    inputs["is_tree"] = torch.tensor([tree])
    got = twin.run_draft_batch(kernel_of("draft_batch"), **inputs)
    assert got.slots.tolist() == [-1] * 5
    assert got.tokens.tolist() == got.positions.tolist() == [0] * 5


@pytest.mark.parametrize("parent", [-1, 3, 100, -(2**40)])
def test_a_candidate_whose_parent_is_no_earlier_one_is_not_kept(parent):
    inputs = build_cases.make_inputs(build_cases.BuildCase("small", 2, 2, 6))
    inputs["parents"][0, 2] = parent
    built = twin.run_tree_build(kernel_of("tree_build"), **inputs)
    if parent != 3:
        assert built.trees.valid.sum() == 6
        kept = built.trees.tokens[0, :6].tolist()
        assert kept[1:] == inputs["tokens"][0, [0, 1, 3, 4, 5]].tolist()
    TreeBatch.of(built.trees, 2).check()


def test_a_path_that_leaves_its_tree_and_a_slot_beyond_the_pages_are_not_written():
    path = torch.tensor([[0, 3, -5, 1, 2]])
    inputs = with_layers({"path_rows": path, "linear_slots": torch.tensor([[7, 8, 9]])}, 3)
    before = copy.deepcopy(inputs["cache"])
    slots = twin.run_kv_commit(kernel_of("kv_commit"), **inputs)
    assert slots.tolist() == [[-1, -1, -1]]
    inputs["path_rows"] = torch.tensor([[0, 1, 0, 0, 0]])
    inputs["linear_slots"] = torch.tensor([[7, 8_000_000_000, 9]])
    slots = twin.run_kv_commit(kernel_of("kv_commit"), **inputs)
    assert slots.tolist() == [[-1, 8_000_000_000, -1]]
    for mine, theirs in zip(flat(inputs["cache"]), flat(before), strict=True):
        assert torch.equal(mine.view(torch.uint8), theirs.view(torch.uint8))


# ---- cores ----


def test_a_request_per_core_where_rows_fill_blocks():
    tiling = kernel_of("tree_build").tiling(SHAPES["tree_build"] | {"nodes": 31})
    assert int.from_bytes(tiling[:4], "little") == 8
    tiling = kernel_of("tree_build").tiling(SHAPES["tree_build"] | {"nodes": 30})
    assert int.from_bytes(tiling[:4], "little") == 1
