# SPDX-License-Identifier: Apache-2.0
"""The implementation that this process holds against the references.

Triton decides at import whether it interprets its kernels, so that is a process of its own:
`TRITON_INTERPRET=1 pytest tests/kernels/test_accept_ops.py ...` (see the Makefile).
"""

from vllm_eagle_pangu.kernels.triton_runtime import interpreting

IMPLEMENTATION = "triton" if interpreting() else "cpp"


def random_cases(count: int) -> range:
    """Seeds of so many random cases; an eighth where Triton interprets, at 50 ms each or more."""
    return range(count if IMPLEMENTATION == "cpp" else count // 8)
