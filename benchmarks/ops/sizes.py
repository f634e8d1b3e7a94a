# SPDX-License-Identifier: Apache-2.0
"""What the op benchmark runs: each op at the sizes of real steps, with the inputs of its tests."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch

from vllm_eagle_pangu.doctor.ops import leaves
from vllm_eagle_pangu.kernels import kv_commit, top_children, tree_attention
from vllm_eagle_pangu.kernels.draft_batch import cases as draft_cases
from vllm_eagle_pangu.kernels.kv_commit import cases as commit_cases
from vllm_eagle_pangu.kernels.tree_accept import cases as accept_cases
from vllm_eagle_pangu.kernels.tree_attention import cases as attention_cases
from vllm_eagle_pangu.kernels.tree_build import cases as build_cases
from vllm_eagle_pangu.kernels.tree_expand import cases as expand_cases
from vllm_eagle_pangu.kernels.tree_prune import cases as prune_cases

# (B, W, D, M)
TREES = ((1, 4, 5, 16), (1, 8, 6, 64), (16, 4, 5, 16), (16, 8, 6, 64), (64, 4, 5, 16))


@dataclass(frozen=True)
class Measurement:
    """One op at one size. `bytes_moved` is the least that the definition reads and writes."""

    op: str
    shape: str
    dtype: str
    run: Callable[..., Any]
    inputs: dict[str, Any]
    bytes_moved: int


def measurements(device: str) -> Iterator[Measurement]:
    """Every op at every size, inputs made on `device`."""
    for batch, width, depth, nodes in TREES:
        size = f"B={batch} W={width} D={depth} M={nodes}"
        trees = (size, nodes + 1, depth, batch)
        built = build_cases.BuildCase(size, width, depth, nodes, batch)
        accepted = accept_cases.AcceptCase(*trees)
        pruned = prune_cases.PruneCase(*trees)
        rows = draft_cases.DraftBatchCase(size, depth, (nodes + 1,) * batch, (0,) * batch)
        grown = expand_cases.ExpandCase(size, width, depth, batch)
        for op, cases, case, more in (
            ("tree_build", build_cases, built, ""),
            ("tree_accept", accept_cases, accepted, ""),
            ("tree_prune", prune_cases, pruned, ""),
            ("draft_batch", draft_cases, rows, ""),
            ("tree_expand", expand_cases, grown, f" level={depth}"),
            ("commit_slots", commit_cases, accepted, ""),
        ):
            run = getattr(import_module(cases.__package__), op)
            inputs = cases.make_inputs(case, 0, device)
            moved = _bytes(inputs) + _bytes(run(**inputs, implementation="reference"))
            yield Measurement(op, f"{size}{more}", "int64", run, inputs, moved)
    yield from _pages(device)
    yield from _children(device)
    yield from _attention(device)


def _pages(device: str) -> Iterator[Measurement]:
    for batch, nodes in ((1, 64), (16, 64)):
        case = commit_cases.PagesCase(
            "pages", layers=32, rows=batch * (nodes + 1), heads=8, head_size=128, kept=5 / nodes
        )
        inputs = commit_cases.make_page_inputs(case, device=device)
        kept = int((inputs["slots"] >= 0).sum())
        # K and V are read and written.
        moved = 4 * kept * case.layers * case.heads * case.head_size * case.dtype.itemsize
        size = f"B={batch} M={nodes} L=32 Hk=8 K=128"
        run = kv_commit.commit_pages
        yield Measurement("commit_pages", size, "bfloat16", run, inputs, moved)


def _children(device: str) -> Iterator[Measurement]:
    generator = torch.Generator().manual_seed(0)
    for rows, vocab in ((4, 32000), (64, 32000)):
        logits = torch.randn(rows, vocab, generator=generator).to(device, torch.bfloat16)
        inputs = {"logits": logits, "width": 4, "target_ids": None}
        size, run = f"N={rows} Vd={vocab} W=4", top_children.top_children
        yield Measurement("top_children", size, "bfloat16", run, inputs, _bytes(inputs))


def _attention(device: str) -> Iterator[Measurement]:
    # Contexts that a CPU serves, then those that a GPU does.
    # (T, M, t, window or None)
    sizes = [(1, 16, 512, None), (1, 64, 512, None), (4, 16, 512, None), (1, 16, 8192, 512)]
    if device == "cuda":
        sizes += [(1, 64, 8192, None), (1, 64, 131072, None)]
        sizes += [(16, 64, 8192, None), (64, 16, 2048, None)]
    for batch, nodes, prefix, window in sizes:
        case = attention_cases.verify_case(
            "verify",
            (prefix,) * batch,
            (nodes + 1,) * batch,
            heads=32,
            kv_heads=8,
            head_size=128,
            transposed_keys=device == "cpu",
            dtype=torch.bfloat16,
            **({} if window is None else {"starts": (prefix - window,) * batch}),
        )
        inputs = attention_cases.make_inputs(case, device=device)
        paged = 2 * batch * (window or prefix) * 8 * 128 * 2
        dense = _bytes([inputs[name] for name in ("query", "key", "value", "output")])
        dense += _bytes(inputs["rows"].visible)
        size = f"T={batch} M={nodes} t={prefix} H=32 Hk=8 K=128"
        size += "" if window is None else f" window={window}"
        run, moved = tree_attention.tree_attention, paged + dense
        yield Measurement("tree_attention", size, "bfloat16", run, inputs, moved)


def _bytes(value: Any) -> int:
    """Of the tensors in nested dataclasses, dicts and sequences."""
    return sum(leaf.nbytes for leaf in leaves(value) if isinstance(leaf, torch.Tensor))
