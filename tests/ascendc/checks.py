# SPDX-License-Identifier: Apache-2.0
"""Runs an AscendC op on the twin and compares it with its reference, bit for bit."""

import copy
import dataclasses
import functools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vllm_eagle_pangu.kernels.draft_batch import cases as draft_cases
from vllm_eagle_pangu.kernels.draft_batch.reference import draft_batch
from vllm_eagle_pangu.kernels.kv_commit import cases as commit_cases
from vllm_eagle_pangu.kernels.kv_commit.reference import commit_slots
from vllm_eagle_pangu.kernels.tree_accept import cases as accept_cases
from vllm_eagle_pangu.kernels.tree_accept.reference import AcceptedPaths, tree_accept
from vllm_eagle_pangu.kernels.tree_build import cases as build_cases
from vllm_eagle_pangu.kernels.tree_build.reference import tree_build
from vllm_eagle_pangu.kernels.tree_expand.frontier import level_slice

from .twin import TwinKernel, compile_kernel
from .twin import ops as twin

Inputs = dict[str, Any]

CORES = (1, 2, 3, 7, 20)


def backward(cores: int) -> Sequence[int]:
    return range(cores - 1, -1, -1)


def shuffled(cores: int) -> Sequence[int]:
    return random.Random(cores).sample(range(cores), cores)


ORDERS: tuple[twin.CoreOrder, ...] = (range, backward, shuffled)

kernel_of = functools.cache(compile_kernel)


def flat(value: Any) -> list[Any]:
    """Tensors and numbers of nested dataclasses, dicts and sequences, in order."""
    if dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [leaf for part in value for leaf in flat(part)]
    return [value]


def assert_same(got: Any, expected: Any) -> None:
    for mine, theirs in zip(flat(got), flat(expected), strict=True):
        if isinstance(theirs, torch.Tensor):
            assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
            torch.testing.assert_close(mine, theirs, rtol=0, atol=0, equal_nan=True)
        else:
            assert mine == theirs


# ---- tree_accept ----


def check_tree_accept(kernel: TwinKernel, inputs: Inputs, **cores: Any) -> None:
    assert_same(twin.run_tree_accept(kernel, **inputs, **cores), tree_accept(**inputs))


def random_accept_case(seed: int) -> accept_cases.AcceptCase:
    """B 1..40; vocabularies of 2 give twin siblings; half the trees' rows may be padding."""
    return accept_cases.AcceptCase(
        "random",
        rows=2 + seed % 23,
        depth=1 + seed % 7,
        batch=1 + seed % 40 if seed % 3 else 1 + seed % 5,
        vocab=(2, 5, 1000)[seed % 3],
        agreement=(0.6, 1.0)[seed % 2],
    )


def random_accept_inputs(seed: int) -> Inputs:
    inputs = accept_cases.make_inputs(random_accept_case(seed), seed)
    if seed % 4 == 1:
        # Padding rows that claim a parent and carry the token drawn at the root.
        valid, generator = inputs["valid"], torch.Generator().manual_seed(seed)
        inputs["tokens"] = inputs["tokens"].where(valid, inputs["draws"][:, :1])
        noise = torch.randint(valid.shape[1], valid.shape, generator=generator)
        inputs["parent"] = inputs["parent"].where(valid, noise)
    if seed % 5 == 2:
        inputs["depth"] //= 2
    return inputs


# ---- draft_batch ----


def check_draft_batch(kernel: TwinKernel, inputs: Inputs, **cores: Any) -> None:
    assert_same(twin.run_draft_batch(kernel, **inputs, **cores), draft_batch(**inputs))


def random_draft_inputs(seed: int) -> Inputs:
    """Ragged batches of 1..20 requests, long chains in some, in the engine's dtypes or wide.

    Some have a request without rows.
    """
    generator = torch.Generator().manual_seed(seed)
    batch = 1 + seed % 20
    rows = torch.randint(1, 14, (batch,), generator=generator)
    is_tree = torch.rand(batch, generator=generator) < 0.6
    if seed % 11 == 3:
        rows[seed % batch] += 600
        is_tree[seed % batch] = False
    tree_rows, chain_rows = rows.where(is_tree, 0), rows.where(~is_tree, 0)
    if seed % 13 == 5 and batch > 1:
        # All but request 0: some rows there must be.
        chain_rows[1 + seed // 13 % (batch - 1)] = 0
    requests = tuple(tree_rows.tolist()), tuple(chain_rows.tolist())
    case = draft_cases.DraftBatchCase("random", 1 + seed % 6, *requests)
    inputs = draft_cases.make_inputs(case, seed)
    if seed % 2:
        inputs["input_ids"] = inputs["input_ids"].int()
    if seed % 4 > 1:
        inputs["query_start"] = inputs["query_start"].long()
    if seed % 7 == 2:
        in_longer_buffers(inputs)
    return inputs


def in_longer_buffers(inputs: Inputs) -> None:
    """The batch starts at row 3 of inputs that go on behind it; paths have spare columns."""
    inputs["query_start"] = inputs["query_start"] + 3
    for name in ("input_ids", "positions", "linear_slots"):
        padding = torch.full((5,), 77, dtype=inputs[name].dtype)
        inputs[name] = torch.cat((padding[:3], inputs[name], padding))
    paths = inputs["paths"]
    spare = torch.full((paths.rows.shape[0], 2), -7)
    rows, output = (torch.cat((x, spare), dim=1) for x in (paths.rows, paths.output))
    inputs["paths"] = AcceptedPaths(rows, paths.length, output)


# ---- tree_build ----


def check_tree_build(kernel: TwinKernel, inputs: Inputs, **cores: Any) -> None:
    trees = tree_build(**inputs)
    built = twin.run_tree_build(kernel, **inputs, **cores)
    assert_same(built.trees, trees)
    assert_same((built.first_child, built.next_sibling), linked(trees.parent, trees.valid))
    assert_same(built.mask, packed(trees.visible))


def linked(parent: torch.Tensor, valid: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """First child and next sibling of each row, both `[B, R] int64`, 0 for none."""
    first_child, next_sibling = torch.zeros_like(parent), torch.zeros_like(parent)
    for b, row in reversed(valid.nonzero().tolist()):
        if row > 0:
            above = parent[b, row]
            next_sibling[b, row], first_child[b, above] = first_child[b, above], row
    return first_child, next_sibling


def packed(visible: torch.Tensor) -> torch.Tensor:
    """`[B, R, ceil(R / 32)] int32`: bit j % 32 of word j // 32 is `visible[b, k, j]`."""
    rows = visible.shape[-1]
    bits = torch.nn.functional.pad(visible, (0, -rows % 32)).unflatten(2, (-1, 32)).long()
    words = (bits << torch.arange(32)).sum(dim=3)
    return words.where(words < 2**31, words - 2**32).int()


def random_build_inputs(seed: int) -> Inputs:
    draw = random.Random(seed)
    width, depth = draw.randint(1, 8), draw.randint(1, 6)
    capacity = level_slice(width, depth).stop
    nodes = draw.randint(1, draw.choice((min(capacity, 16), min(capacity, 70))))
    if seed % 9 == 4 and capacity >= 31:
        nodes = 31  # R = 32: a request per core
    batch = draw.choice((draw.randint(1, 5), draw.randint(1, 5), draw.randint(30, 70)))
    if nodes > 31:
        batch = min(batch, 5)
    kinds = ("random", "ties", "certain", "rising", "holes", "nothing")
    case = build_cases.BuildCase("random", width, depth, nodes, batch, draw.choice(kinds))
    inputs = build_cases.make_inputs(case, seed)
    if seed % 6 == 0:
        coin = torch.rand(inputs["scores"].shape, generator=torch.Generator().manual_seed(seed))
        scores = inputs["scores"].masked_fill(coin > 0.9, torch.inf)
        inputs["scores"] = scores.masked_fill(coin < 0.1, -0.0)
    return inputs


# ---- kv_commit ----


def check_kv_commit(kernel: TwinKernel, inputs: Inputs, **cores: Any) -> None:
    expected = copy.deepcopy(inputs["cache"])
    slots = commit_slots(inputs["path_rows"], inputs["linear_slots"])
    for scratch, cache in zip(inputs["scratch"], expected, strict=True):
        write(cache, *scratch, slots.view(-1))
    assert_same(twin.run_kv_commit(kernel, **inputs, **cores), slots)
    for mine, theirs in zip(flat(inputs["cache"]), flat(expected), strict=True):
        assert torch.equal(mine.view(torch.uint8), theirs.view(torch.uint8))


def write(
    cache: Sequence[torch.Tensor], key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor
) -> None:
    """The platform's cache write, by plain indexing."""
    for page, rows in zip(cache, (key, value), strict=True):
        kept = rows[: slots.numel()][slots >= 0]
        page.view(-1, *page.shape[2:])[slots[slots >= 0]] = kept


def with_layers(inputs: Inputs, seed: int, size: int | None = None) -> Inputs:
    """Add scratch and pages of 1..3 layers, filled with random bytes; `size`: of a head."""
    generator = torch.Generator().manual_seed(seed)
    dtype = (torch.float16, torch.bfloat16, torch.float32)[seed % 3]
    heads, small = ((1, 16), (2, 24), (3, 16))[seed % 3 if seed % 2 else 0]
    size = size or small
    batch, rows = inputs["linear_slots"].shape
    block_size = (8, 16, 128)[seed % 3]
    blocks = -(-2 * batch * rows // block_size)

    def filled(*shape: int) -> torch.Tensor:
        row_bytes = size * torch.empty((), dtype=dtype).element_size()
        return torch.randint(
            256, (*shape, heads, row_bytes), generator=generator, dtype=torch.uint8
        ).view(dtype)

    def pair(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
        return filled(*shape), filled(*shape)

    layers = range(1 + seed % 3)
    scratch = [pair(batch * rows + seed % 4) for _ in layers]
    return inputs | {"scratch": scratch, "cache": [pair(blocks, block_size) for _ in layers]}


def random_commit_inputs(seed: int) -> Inputs:
    inputs = commit_cases.make_inputs(random_accept_case(seed), seed)
    if seed % 3 == 0:
        coin = torch.rand(
            inputs["linear_slots"].shape, generator=torch.Generator().manual_seed(seed)
        )
        inputs["linear_slots"] = inputs["linear_slots"].masked_fill(coin < 0.2, -1)
    return with_layers(inputs, seed)


# ---- all four ----


@dataclass(frozen=True)
class CheckedOp:
    """`case_inputs()` gives a name and inputs for each of the op's CASES."""

    check: Callable[..., None]
    case_inputs: Callable[[], Iterator[tuple[str, Inputs]]]
    random_inputs: Callable[[int], Inputs]
    changed: tuple[str, ...] = ()  # inputs that the op updates in place

    def verify(self, kernel: TwinKernel, inputs: Inputs, cores: int, order: twin.CoreOrder) -> None:
        """The result is the reference's, and the inputs stay as they are."""
        before = copy.deepcopy(inputs)
        self.check(kernel, inputs, cores=cores, order=order)
        kept = [name for name in inputs if name not in self.changed]
        assert_same([inputs[name] for name in kept], [before[name] for name in kept])


def _named(cases: Any, seeds: range = range(2)) -> Iterator[tuple[str, Inputs]]:
    for case in cases.CASES:
        for seed in seeds:
            yield f"{case.name}-{seed}", cases.make_inputs(case, seed)


def _commit_cases() -> Iterator[tuple[str, Inputs]]:
    for number, (name, inputs) in enumerate(_named(commit_cases)):
        yield name, with_layers(inputs, number)
    # Rows of 80 000 bytes pass through the unified buffer in tiles.
    case = accept_cases.AcceptCase("long_rows", 3, 2, batch=2, vocab=2, agreement=1.0)
    yield case.name, with_layers(commit_cases.make_inputs(case), 2, size=20_000)


OPS = {
    "tree_accept": CheckedOp(check_tree_accept, lambda: _named(accept_cases), random_accept_inputs),
    "draft_batch": CheckedOp(check_draft_batch, lambda: _named(draft_cases), random_draft_inputs),
    "tree_build": CheckedOp(check_tree_build, lambda: _named(build_cases), random_build_inputs),
    "kv_commit": CheckedOp(check_kv_commit, _commit_cases, random_commit_inputs, ("cache",)),
}
