# SPDX-License-Identifier: Apache-2.0
"""Every Triton kernel compiles, without a GPU, for those that users have, and spills nothing."""

import re
import subprocess
from pathlib import Path

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from vllm_eagle_pangu.kernels.triton_runtime import interpreting

from ..compile_cases import CompileCase, compile_cases

pytestmark = pytest.mark.skipif(interpreting(), reason="interpreted kernels are not compiled")

CASES = [] if interpreting() else compile_cases()
TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
NVDISASM = Path(triton.__file__).parent / "backends/nvidia/bin/nvdisasm"


def compiled(case: CompileCase, target: str):
    source = ASTSource(case.kernel, case.signature, case.constexprs, case.attrs)
    return triton.compile(source, target=TARGETS[target], options=dict(case.options))


# sm_90 takes every case; the others what the benchmark verifies: heads of 128 in bfloat16.
ELSEWHERE = [
    pytest.param(case, target, id=f"{case.name}-{target}")
    for case in CASES
    for target in ("sm_80", "sm_100", "gfx942")
    if "tree_attention" not in case.kernel.__module__ or "verify65_bf16_128" in case.name
]


@pytest.mark.parametrize(("case", "target"), ELSEWHERE)
def test_a_kernel_compiles_to_a_binary(case, target):
    binary = compiled(case, target).asm
    assert len(binary["hsaco" if target == "gfx942" else "cubin"]) > 0


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_kernel_compiles_for_sm_90_and_spills_no_register(case, tmp_path):
    cubin = tmp_path / "kernel.cubin"
    cubin.write_bytes(compiled(case, "sm_90").asm["cubin"])
    code = subprocess.run([NVDISASM, cubin], capture_output=True, text=True, check=True).stdout
    assert "EXIT" in code
    # Stores to and loads from local memory; frames of calls alone cost nothing.
    assert not re.findall(r"\b(?:STL|LDL)\b.*", code)
