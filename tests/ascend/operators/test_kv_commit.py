# SPDX-License-Identifier: Apache-2.0
"""Commits by Ascend's cache writes equal the definition, on their stand-ins."""

from dataclasses import replace

import pytest
import torch

from vllm_eagle_pangu.kernels.kv_commit import commit_pages
from vllm_eagle_pangu.kernels.kv_commit.cases import PAGES_CASES, PagesCase, make_page_inputs

WRITTEN = [case for case in PAGES_CASES if case.layout == "NHD"]
REFUSED = {
    "pages: strides": PagesCase("heads_first", layout="HND"),
    "scratch dtype=torch.float32 must be torch.bfloat16": PagesCase("cast", dtype=torch.float32),
}


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("case", WRITTEN, ids=lambda case: case.name)
@pytest.mark.parametrize("implementation", ("npu", "npu_a5"))
def test_a_commit_equals_the_definition(implementation: str, case: PagesCase, seed: int) -> None:
    mine, theirs = make_page_inputs(case, seed), make_page_inputs(case, seed)
    commit_pages(**mine, implementation=implementation)
    commit_pages(**theirs, implementation="reference")
    for got, expected in zip(mine["layers"].pages, theirs["layers"].pages, strict=True):
        torch.testing.assert_close(got.key, expected.key, rtol=0, atol=0)
        torch.testing.assert_close(got.value, expected.value, rtol=0, atol=0)


@pytest.mark.parametrize("implementation", ("npu", "npu_a5"))
def test_fewer_slots_than_scratch_rows(implementation: str) -> None:
    case = replace(WRITTEN[-1], kept=1.0)
    mine, theirs = make_page_inputs(case), make_page_inputs(case)
    for inputs in (mine, theirs):
        inputs["slots"] = inputs["slots"][:3]
    commit_pages(**mine, implementation=implementation)
    commit_pages(**theirs, implementation="reference")
    got, expected = mine["layers"].pages[0], theirs["layers"].pages[0]
    assert torch.equal(got.key, expected.key) and torch.equal(got.value, expected.value)


@pytest.mark.parametrize("implementation", ("npu", "npu_a5"))
@pytest.mark.parametrize("message", REFUSED)
def test_what_the_cache_writes_cannot_do_is_refused(implementation: str, message: str) -> None:
    inputs = make_page_inputs(replace(REFUSED[message], kept=1.0))
    with pytest.raises(ValueError, match=message):
        commit_pages(**inputs, implementation=implementation)
