# SPDX-License-Identifier: Apache-2.0
"""Every Triton kernel without float64 goes through triton-ascend as far as that goes: to linalg.

That is without CANN. Necessary, not sufficient: what BiSheng makes of it, and what an NPU does with
that, is not seen.
"""

import stat
import subprocess
from pathlib import Path

import pytest
from triton._C.libtriton import ir
from triton.backends.ascend import compiler as ascend
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from ..compile_cases import compile_cases

# NPUs have no float64: `tree_prune` is the host's there.
CASES = [case for case in compile_cases() if "*fp64" not in case.signature.values()]


@pytest.fixture(scope="module")
def backend() -> ascend.AscendBackend:
    # The wheel's own tool may come without permission to run it.
    tool = Path(ascend._get_triton_adapter_opt_path())
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    return ascend.AscendBackend(GPUTarget("npu", "Ascend910B3", 0))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_kernel_lowers_to_linalg(case, backend):
    options = backend.parse_options({})
    # Triton 3.2 takes no None for a count of pipeline stages, which NPUs have none of.
    constants = {name: 1 if value is None else value for name, value in case.constexprs.items()}
    types = {name: kind for name, kind in case.signature.items() if kind != "constexpr"}
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    module = ASTSource(case.kernel, types, constants).make_ir(
        options, backend.get_codegen_implementation(), backend.get_module_map(), context
    )
    metadata = {"hash": case.name, **vars(options)}
    module = ascend.make_ttir(module, metadata, options)
    try:
        lowered = ascend.ttir_to_linalg(module, metadata, options, named_ops=True)
    except subprocess.CalledProcessError as error:
        pytest.fail(error.stderr.decode()[-3000:])
    assert "func.func @" in lowered
    # What was left to the frontend's dialect would be unknown to the next compiler.
    assert "tt.func" not in lowered and "tt.load" not in lowered
