# SPDX-License-Identifier: Apache-2.0
"""Whether Triton kernels can run in this process, and how they are launched."""

import importlib.util
import os
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


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
    """Run `kernel` on contiguous tensors, so what is written must be so; nothing on no programs."""
    if 0 not in grid:
        kernel[grid](*map(_as_read, arguments), **options)


def _as_read(argument: Any) -> Any:
    if not isinstance(argument, torch.Tensor):
        return argument
    whole = argument.contiguous()
    # A bool is a byte, which Triton loads on every backend.
    return whole.view(torch.int8) if whole.dtype == torch.bool else whole
