# SPDX-License-Identifier: Apache-2.0
"""Whether Triton kernels can run in this process."""

import importlib.util
import os

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
