# SPDX-License-Identifier: Apache-2.0
"""Specialisations of every Triton kernel, for tests that compile without a device."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import triton
import triton.language as tl

from vllm_eagle_pangu.kernels.draft_batch import triton_impl as draft_batch
from vllm_eagle_pangu.kernels.kv_commit import triton_impl as kv_commit
from vllm_eagle_pangu.kernels.top_children import triton_impl as top_children
from vllm_eagle_pangu.kernels.tree_accept import triton_impl as tree_accept
from vllm_eagle_pangu.kernels.tree_attention import AttentionCall, AttentionRows, PagedKV
from vllm_eagle_pangu.kernels.tree_attention import triton_impl as tree_attention
from vllm_eagle_pangu.kernels.tree_build import triton_impl as tree_build
from vllm_eagle_pangu.kernels.tree_expand import triton_impl as tree_expand
from vllm_eagle_pangu.kernels.tree_prune import triton_impl as tree_prune

TYPES = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int8: "*i8",
    torch.int32: "*i32",
}


@dataclass(frozen=True)
class CompileCase:
    """A kernel at one specialisation, as `triton.compiler.ASTSource` takes it.

    `signature`: a type per argument, "constexpr" for those in `constexprs`; `options`: num_warps
    and the like; `attrs`: what a launch would tell of arguments by position, as alignment to 16.
    """

    name: str
    kernel: Any
    signature: dict[str, str]
    constexprs: dict[str, Any]
    options: dict[str, int]
    attrs: dict[tuple[int], list[list[Any]]] = field(default_factory=dict)


def compile_case(
    name: str, kernel: Any, types: str, num_warps: int, **constexprs: Any
) -> CompileCase:
    """`types`: those of the arguments that are no constexpr, in order, as in "*i64 *fp32 i32"."""
    plain = [argument for argument in kernel.arg_names if argument not in constexprs]
    signature = dict(zip(plain, types.split(), strict=True))
    return CompileCase(
        name=name,
        kernel=kernel,
        signature={each: signature.get(each, "constexpr") for each in kernel.arg_names},
        constexprs=constexprs,
        options={"num_warps": num_warps},
    )


def draft_batch_cases() -> Iterator[CompileCase]:
    """Batches of up to 1 and 64 requests, in the dtypes of vLLM's buffers."""
    types = "*i32 *i64 *i32 *i8" + " *i64" * 11 + " i32" * 4
    for batch in (1, 64):
        yield compile_case(
            f"draft_batch_{batch}",
            draft_batch._draft_batch_kernel,
            types,
            1,
            BATCH=batch,
            BLOCK=draft_batch.BLOCK,
        )


def kv_commit_cases() -> Iterator[CompileCase]:
    """Trees of up to 64 nodes; 8 heads of 128 and of 64 in bfloat16."""
    yield compile_case(
        "commit_slots",
        kv_commit._commit_slots_kernel,
        "*i64 *i64 *i64 i32 i32",
        1,
        ROWS=128,
        PATH=16,
    )
    types = "*i64 *i64" + " i64" * 10 + " i32" * 3
    for elements in (128, 64):
        yield compile_case(
            f"commit_pages_{elements}",
            kv_commit._commit_pages_kernel,
            types,
            4,
            SCRATCH=tl.bfloat16,
            PAGES=tl.bfloat16,
            HEADS=8,
            ELEMENTS=elements,
        )


def top_children_cases() -> Iterator[CompileCase]:
    """Draft vocabularies of 1000, 32 000 and 151 936, as heads have them."""
    for dtype, vocab, mapped in (
        (torch.bfloat16, 1000, True),
        (torch.bfloat16, 32_000, True),
        (torch.float16, 32_000, False),
        (torch.float32, 32_000, True),
        (torch.bfloat16, 151_936, False),
        (torch.float32, 151_936, False),
    ):
        lanes = min(top_children.LANES, triton.next_power_of_2(vocab))
        case = compile_case(
            f"top_children_{TYPES[dtype][1:]}_{vocab}",
            top_children._top_children_kernel,
            f"{TYPES[dtype]} *i64 *fp32 *i64 i32 i32 i32",
            top_children._warps(lanes),
            MAPPED=mapped,
            LANES=lanes,
            TURNS=triton.next_power_of_2(triton.cdiv(vocab, lanes)),
        )
        # Aligned as a launch would find them: loads of 16 bytes.
        aligned = [0, 1, 2, 3] + ([4, 5] if vocab % 16 == 0 else [])
        case.attrs.update({(position,): [["tt.divisibility", 16]] for position in aligned})
        yield case


def tree_accept_cases() -> Iterator[CompileCase]:
    """Trees of up to 64 and 128 nodes."""
    types = "*i64 *i64 *i8 *i64 *i64 *i64 *i64 i32 i32"
    for rows in (128, 256):
        yield compile_case(
            f"tree_accept_{rows}", tree_accept._tree_accept_kernel, types, 1, ROWS=rows
        )


def tree_attention_cases() -> Iterator[CompileCase]:
    """Group 4, 8 KV heads; M+1 = 65 rows in pages of 16, a drafter level of 8 rows.

    Import with TRITON_INTERPRET unset: an interpreted kernel cannot be compiled.
    """
    for head_size in (64, 80, 96, 128, 192, 256):
        yield from _cases(f"verify65_bf16_{head_size}", 65, head_size, torch.bfloat16)
    yield from _cases("verify65_fp16_128", 65, 128, torch.float16)
    yield from _cases("verify65_fp32_128", 65, 128, torch.float32)
    yield from _cases("level8_bf16_128", 8, 128, torch.bfloat16)
    yield from _cases("level8_bf16_256", 8, 256, torch.bfloat16)
    yield from _cases("chain1_bf16_128", 1, 128, torch.bfloat16)
    yield from _cases("verify65_window_bf16_128", 65, 128, torch.bfloat16, window=True)
    yield from _cases("level8_window_bf16_256", 8, 256, torch.bfloat16, window=True)
    yield from _cases("verify65_odd_page_bf16_128", 65, 128, torch.bfloat16, block_size=13)


def _cases(
    name: str,
    rows: int,
    head_size: int,
    dtype: torch.dtype,
    group: int = 4,
    block_size: int = 16,
    window: bool = False,
) -> Iterator[CompileCase]:
    """Fused and split, on tensors without storage."""
    T, Hk, P = 3, 8, 4096

    def empty(*shape: int, dtype: torch.dtype = dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    count = empty(T, dtype=torch.int32)
    attention_rows = AttentionRows(
        empty(T, P, dtype=torch.int32),
        *(count, count, count, count, count),
        empty(T, rows, rows, dtype=torch.bool),
        prefix_start=count if window else None,
    )
    # As vLLM's FlashAttention lays pages out: [2, blocks, block_size, Hk, K].
    pages = empty(2, 100, block_size, Hk, head_size).transpose(2, 3)
    call = AttentionCall(
        empty(T * rows, Hk * group, head_size),
        empty(T * rows, Hk, head_size),
        empty(T * rows, Hk, head_size),
        PagedKV(pages[0], pages[1]),
        attention_rows,
        head_size**-0.5,
        empty(T * rows, Hk * group, head_size),
    )
    for splits in (1, 4):
        for launch in tree_attention.launches(call, splits):
            part = "prefix" if "output" not in launch.arguments else "tree"
            yield _compile_case(f"{name}_{'split' if splits > 1 else 'fused'}_{part}", launch)


def _compile_case(name: str, launch: tree_attention.Launch) -> CompileCase:
    """What a launch with these arguments would have Triton compile, pointers aligned."""
    signature: dict[str, str] = {}
    constexprs: dict[str, Any] = {}
    attrs: dict[tuple[int], list[list[Any]]] = {}
    for position, parameter in enumerate(launch.kernel.params):
        value = launch.arguments[parameter.name]
        specialize = not parameter.do_not_specialize
        if parameter.is_constexpr or value is None or (specialize and _is_one(value)):
            signature[parameter.name] = "constexpr"
            constexprs[parameter.name] = value
            continue
        if isinstance(value, torch.Tensor):
            signature[parameter.name] = TYPES[value.dtype]
        elif isinstance(value, float):
            signature[parameter.name] = "fp32"
            continue
        else:
            signature[parameter.name] = "i32" if -(2**31) <= value < 2**31 else "i64"
        if specialize and (isinstance(value, torch.Tensor) or value % 16 == 0):
            attrs[(position,)] = [["tt.divisibility", 16]]
    return CompileCase(name, launch.kernel, signature, constexprs, launch.options, attrs)


def _is_one(value: Any) -> bool:
    return isinstance(value, int) and value == 1


def tree_build_cases() -> Iterator[CompileCase]:
    """(W, D, M) = (4, 5, 16), (8, 6, 64) and (8, 8, 128)."""
    types = "*i64 *i64 *fp32 *i64 *i64 *i64 *i64 *i8 *i8 *fp32 i32 i32 i32 i32"
    for candidates, columns in ((128, 32), (512, 128), (512, 256)):
        yield compile_case(
            f"tree_build_{candidates}_{columns}",
            tree_build._tree_build_kernel,
            types,
            4,
            CANDIDATES=candidates,
            COLUMNS=columns,
            BLOCK=min(16, tree_build.TILE // candidates),
            OTHERS=tree_build.TILE // candidates,
        )


def tree_expand_cases() -> Iterator[CompileCase]:
    """(W, level): the root's children, and levels of trees of 4, 8 and 16 a level."""
    types = "*fp32 *i64 *fp32 *i64 *i8 *i64 *fp32 *i64 *i64 *fp32 *i64 *i8 *i64" + " i32" * 5
    for width, level in ((8, 1), (4, 5), (8, 6), (16, 8)):
        name = f"tree_expand_{width}_level{level}"
        yield compile_case(
            name, tree_expand._tree_expand_kernel, types, 4, **tree_expand._sizes(width, level)
        )


def tree_prune_cases() -> Iterator[CompileCase]:
    """Trees of up to 16, 64 and 128 nodes; batches of up to 64."""
    for rows in (17, 65, 129):
        sizes = tree_prune._sizes(rows)
        types = "*i64 *i64 *i8 *i8 *fp32 *i64 *fp64 *fp64 i32"
        yield compile_case(f"chances_{rows}", tree_prune._chances_kernel, types, 4, **sizes)
        types = "*i64 *i64 *i64 *i8 *fp32 *fp64 *fp64 *i64 *i64 *i64 *i8 *i8 *fp32 i32"
        yield compile_case(f"keep_{rows}", tree_prune._keep_kernel, types, 4, **sizes)
        types = "*i64 *i8 *fp32 *i64 *i64 *i64 *fp64 *fp64 i32 i32"
        yield compile_case(f"tally_{rows}", tree_prune._tally_kernel, types, 4, **sizes)
    types = "*fp64 *i64 *fp64 *fp64 i32"
    yield compile_case("learn", tree_prune._learn_kernel, types, 1, MEMORY=0.99, BATCH=64)


def compile_cases() -> list[CompileCase]:
    """Those of all kernels. Not with TRITON_INTERPRET: an interpreted kernel cannot be compiled."""
    every = (
        *(draft_batch_cases, kv_commit_cases, top_children_cases, tree_accept_cases),
        *(tree_attention_cases, tree_build_cases, tree_expand_cases, tree_prune_cases),
    )
    return [case for cases in every for case in cases()]
