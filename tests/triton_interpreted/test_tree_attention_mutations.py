# SPDX-License-Identifier: Apache-2.0
"""Deliberate faults in the Triton tree attention: the comparison must catch each of them."""

import importlib
import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from vllm_eagle_pangu.kernels.tree_attention import AttentionCall, triton_impl
from vllm_eagle_pangu.kernels.tree_attention.cases import level_case, make_inputs, verify_case
from vllm_eagle_pangu.kernels.tree_attention.comparison import assert_as_exact_as_torch

FOLDER = Path(triton_impl.__file__).parent
PACKAGE = "vllm_eagle_pangu.kernels.tree_attention"
KERNEL_FILES = ("triton_prefix", "triton_tree", "triton_impl")
_number = itertools.count()

# No request's pages exceed the first one's: reading a wrong request's pages stays inside memory.
CASES = (
    verify_case("verify", (130, 70), (9, 9), heads=4, kv_heads=2, gap=1),
    level_case("level", (130, 0), width=4, level=3, depth=3, head_size=20),
    verify_case("half", (64,), (40,), heads=2, kv_heads=1, dtype=torch.float16),
    verify_case("window", (130, 70), (9, 9), starts=(43, 64)),
)

MUTATIONS = (
    ("mask=inside, other=0) != 0", "mask=inside, other=0) >= 0", "mask ignored"),
    ("column[None, :] * visible", "(column // 2)[None, :] * visible", "mask of other columns"),
    ("row[:, None] * visible_row", "0 * row[:, None] * visible_row", "mask of row 0"),
    ("scores = tl.where(sees, scores", "scores = tl.where(inside, scores", "siblings leak"),
    ("live = position < end\n", "live = position < end - 1\n", "last key of a prefix left out"),
    ("live = position < end\n", "live = position <= end\n", "one key too many"),
    ("block_table + request * table_stride", "block_table + 0 * request", "pages of request 0"),
    ("position // PAGE", "start // PAGE + 0 * position", "first page of the tile for all of it"),
    ("(position % PAGE)", "(position % (PAGE // 2))", "wrong slot of a page"),
    ("page_value + kv_head * page", "page_value + 0 * kv_head * page", "KV head 0 for all, pages"),
    ("value + first_key * value_row_stride + kv_head", "value + first_key * value_row_stride + 0",
     "KV head 0 for all, dense"),
    ("kv_head * GROUP + index % GROUP) * head", "kv_head + index % GROUP) * head", "query heads"),
    ("key + first_key * key_row_stride", "key + 0 * first_key", "keys of the first request"),
    ("for split in range(0, count)", "for split in range(0, count - 1)", "last split left out"),
    ("total = total * shrink + weight\n", "total = total + weight\n", "splits not rescaled"),
    ("peak + tl.log2(total)", "peak", "a split's log-sum-exp without its sum"),
    ("mask=seen[:, None]", "mask=live[:, None]", "0 * NaN of a row that nobody sees"),
    ("total = total * shrink + tl.sum", "total = total + tl.sum", "sum not rescaled"),
    ("accumulator * shrink[:, None], I", "accumulator, I", "accumulator not rescaled"),
    ("& in_head[:, None]", "& (dim < K - 1)[:, None]", "last element of a head left out"),
    ("start, prefix, scale,", "0, prefix, scale,", "window ignored, fused"),
    ("first = start + split * length", "first = split * length", "window ignored, split"),
    ("request) if WINDOW else 0\n    length", "request) - 1 if WINDOW else 0\n    length",
     "window from one key before, split"),
    ("request) if WINDOW else 0\n     ", "request) + 1 if WINDOW else 0\n     ",
     "window from one key later, fused"),
    ("request) if WINDOW", "request) // PAGE * PAGE if WINDOW", "window from the start of a page"),
    ("prefix_start + request", "prefix_start + 0 * request", "window of request 0"),
    ("split_length(prefix - start, ", "split_length(prefix, ", "splits of the whole prefix"),
    ("keys = prefix - start", "keys = prefix", "splits merged that nobody wrote"),
    ("tl.load(key_count + request), ", "tl.maximum(tl.load(key_count + request) - start, 0), ",
     "window on dense keys"),
    ('"WINDOW": rows.prefix_start is not None', '"WINDOW": False', "window not handed on"),
)  # fmt: skip


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Callable]:
    """`load(old, new)`: tree attention from a copy of the kernel files with a text replaced."""
    monkeypatch.syspath_prepend(tmp_path)

    def load(old: str = "", new: str = "") -> Callable[..., None]:
        name = f"mutated_{next(_number)}"
        (tmp_path / name).mkdir()
        sources = {file: (FOLDER / f"{file}.py").read_text() for file in KERNEL_FILES}
        if old:
            assert any(old in text for text in sources.values()), f"{old!r} is in no kernel"
            sources = {file: text.replace(old, new) for file, text in sources.items()}
        for file, text in sources.items():
            mutated = re.sub(rf"{re.escape(PACKAGE)}\.(?=triton_)", f"{name}.", text)
            (tmp_path / name / f"{file}.py").write_text(mutated)
        importlib.invalidate_caches()
        return importlib.import_module(f"{name}.triton_impl").tree_attention

    return load


def assert_right(attention: Callable[..., None]) -> None:
    for case in CASES:
        for splits in (1, 3):

            def run(splits: int = splits, **inputs: Any) -> None:
                attention(AttentionCall(**inputs), splits)

            assert_as_exact_as_torch(run, make_inputs(case))


def test_the_unchanged_kernels_pass(load: Callable[..., Callable]) -> None:
    assert_right(load())


@pytest.mark.parametrize(("old", "new", "what"), MUTATIONS, ids=[what for *_, what in MUTATIONS])
def test_a_fault_is_caught(load: Callable[..., Callable], old: str, new: str, what: str) -> None:
    mutant = load(old, new)
    with pytest.raises(AssertionError):
        assert_right(mutant)
