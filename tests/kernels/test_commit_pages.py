# SPDX-License-Identifier: Apache-2.0
"""commit_pages: every scratch row with a slot reaches it in every layer, and nothing else moves."""

import dataclasses
import random

import pytest
import torch

from vllm_eagle_pangu.kernels.kv_commit import CommitLayers, assert_written_once, commit_pages
from vllm_eagle_pangu.kernels.kv_commit.cases import (
    PAGES_CASES,
    PagesCase,
    make_page_inputs,
    writes,
)
from vllm_eagle_pangu.kernels.tree_attention.pages import PagedKV

from .chosen import IMPLEMENTATION, random_cases


def committed(case: PagesCase, seed: int, implementation: str) -> list[torch.Tensor]:
    """The pages as bytes, key and value of each layer in turn."""
    inputs = make_page_inputs(case, seed)
    layers = inputs["layers"]
    before = [scratch.clone() for scratch in (*layers.keys, *layers.values)]
    slots = inputs["slots"].clone()
    assert_written_once(inputs["slots"])
    commit_pages(**inputs, implementation=implementation)
    assert torch.equal(inputs["slots"], slots)
    for scratch, old in zip((*layers.keys, *layers.values), before, strict=True):
        torch.testing.assert_close(scratch, old, rtol=0, atol=0, equal_nan=True)
    pages = [side for pair in layers.pages for side in (pair.key, pair.value)]
    return [side.flatten().view(torch.uint8) for side in pages]


def by_hand(case: PagesCase, seed: int) -> list[torch.Tensor]:
    inputs = make_page_inputs(case, seed)
    layers = inputs["layers"]
    for layer, pages in enumerate(layers.pages):
        sides = ((layers.keys[layer], pages.key), (layers.values[layer], pages.value))
        for scratch, to in sides:
            for row, slot in enumerate(inputs["slots"].tolist()):
                if slot < 0:
                    continue
                for head in range(case.heads):
                    numbers = scratch[row, head].float()
                    block, place = divmod(slot, case.block_size)
                    if case.layout == "amx":
                        group, *parts = to.shape[3:]
                        numbers = numbers.view(parts)
                        to[block, head, place // group, place % group] = numbers.to(to.dtype)
                        continue
                    to[block, head, place] = numbers.to(to.dtype)
    pages = [side for pair in layers.pages for side in (pair.key, pair.value)]
    return [side.flatten().view(torch.uint8) for side in pages]


def random_case(draw: random.Random) -> PagesCase:
    dtype = draw.choice((torch.float32, torch.bfloat16, torch.float16))
    return PagesCase(
        "random",
        layers=draw.randint(1, 3),
        rows=draw.randint(1, 12),
        heads=draw.randint(1, 5),
        head_size=draw.choice((1, 8, 20, 64, 80)),
        block_size=draw.choice((1, 7, 16, 64)),
        layout=draw.choice(("NHD", "HND", "vec")),
        dtype=dtype,
        page_dtype=dtype,
        kept=draw.random(),
    )


@pytest.mark.parametrize("case", PAGES_CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("implementation", ["reference", IMPLEMENTATION])
def test_a_case_is_committed_as_by_hand(case, implementation):
    if implementation != "reference" and not writes(implementation, case):
        pytest.skip("never met there")
    for got, expected in zip(committed(case, 0, implementation), by_hand(case, 0), strict=True):
        assert torch.equal(got, expected)


def test_random_layers_are_committed_as_by_hand():
    draw = random.Random(0)
    for seed in random_cases(500):
        case = random_case(draw)
        implementation = IMPLEMENTATION if writes(IMPLEMENTATION, case) else "reference"
        # The loop by hand is slow, and the reference cannot be held against itself.
        compares = implementation != "reference" and seed % 10
        expected = committed(case, seed, "reference") if compares else by_hand(case, seed)
        for got, bytes_ in zip(committed(case, seed, implementation), expected, strict=True):
            assert torch.equal(got, bytes_), case


def test_layers_of_several_layouts_are_committed_with_one_launch_for_each():
    """Layers of one KV cache group may differ in KV heads and head size."""
    cases = [
        PagesCase("two", layers=2),
        PagesCase("one head", layers=1, heads=1),
        PagesCase("small heads", layers=3, head_size=32, layout="HND"),
    ]
    inputs = [make_page_inputs(case, 0) for case in cases]
    expected = [side for case in cases for side in by_hand(case, 0)]
    kinds = [case["layers"] for case in inputs]
    given = [
        list(zip(kind.keys, kind.values, kind.pages, strict=True))[layer]
        for layer, kind in [(0, kinds[0]), (0, kinds[1]), (1, kinds[0])]
        + [(layer, kinds[2]) for layer in range(3)]
    ]
    keys, values, pages = zip(*given, strict=True)
    layouts = CommitLayers.by_layout(keys, values, pages)
    assert sorted(len(layers.keys) for layers in layouts) == [1, 2, 3]
    for layers in layouts:
        commit_pages(layers, inputs[0]["slots"], implementation=IMPLEMENTATION)
    sides = [side for kind in kinds for pair in kind.pages for side in (pair.key, pair.value)]
    for side, bytes_ in zip(sides, expected, strict=True):
        assert torch.equal(side.flatten().view(torch.uint8), bytes_)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda layers: {"values": layers.values[:1]}, "counts differ"),
        (lambda layers: {"keys": [layers.keys[0], layers.keys[1][:3]]}, "scratches differ"),
        (lambda layers: {"keys": [], "values": [], "pages": []}, "no layers"),
        (
            lambda layers: {
                "pages": [
                    PagedKV(pair.key[:, :1], pair.value[:, :1].contiguous())
                    for pair in layers.pages
                ]
            },
            "other heads than the scratch",
        ),
    ],
    ids=["counts", "shapes", "none", "heads"],
)
def test_layers_that_do_not_fit_one_commit_are_refused(change, reason):
    layers = make_page_inputs(PagesCase("fits"))["layers"]
    given = {
        field.name: getattr(layers, field.name)
        for field in dataclasses.fields(layers)
        if field.init
    }
    with pytest.raises(AssertionError, match=reason):
        CommitLayers(**{**given, **change(layers)})
