# SPDX-License-Identifier: Apache-2.0
"""Whether Triton kernels can run in this process, and how to compile them for another."""

import importlib.util
import os
from dataclasses import dataclass, field
from typing import Any

import torch


def interpreting() -> bool:
    """Whether Triton runs kernels in its interpreter: slow, on any device, decided at import."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def require_triton(op: str) -> None:
    """Check that `op`'s Triton implementation can run here.

    Raises:
        RuntimeError: it cannot; the message says why and what to do.
    """
    if importlib.util.find_spec("triton") is None:
        raise RuntimeError(
            f"{op}: the Triton implementation needs the package triton, which is not installed;"
            ' install it, or choose implementation "reference"'
        )
    if not interpreting() and not torch.cuda.is_available():
        raise RuntimeError(
            f"{op}: the Triton implementation needs a GPU, and torch sees none here; choose"
            ' implementation "cpp" or "reference", or set TRITON_INTERPRET=1 to interpret it (slow)'
        )


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
