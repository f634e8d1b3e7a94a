# SPDX-License-Identifier: Apache-2.0
"""`eagle-pangu doctor --npu`: its first three rungs, in this process, which has the stand-ins."""

import pytest

from vllm_eagle_pangu.doctor import machine, ops
from vllm_eagle_pangu.doctor.finding import OK, WRONG
from vllm_eagle_pangu.kernels.npu_runtime import OPERATORS
from vllm_eagle_pangu.kernels.tree_attention.cases import NPU_CASES


def test_versions_and_names_of_vllm_ascend_are_found_and_cann_is_missed():
    found = {finding.name: finding for finding in machine.facts("npu")}
    ours = ("vllm-ascend", "ascend names", "torch_npu")
    assert {name: found[name].state for name in ours} == dict.fromkeys(ours, OK)
    missing = ("CANN", "driver", "npu")
    assert {name: found[name].state for name in missing} == dict.fromkeys(missing, WRONG)


def test_every_operator_is_there_by_name_and_every_op_is_ready():
    found = list(ops.present("npu"))
    assert {finding.state for finding in found} == {OK}
    assert {finding.name for finding in found} >= {name.split(".")[1] for name in OPERATORS}


# The tensors are the host's: operators are CPU functions here.
@pytest.mark.parametrize("name", ops.names("npu"))
def test_every_kernel_agrees_on_its_small_cases(name):
    (found,) = ops.on_all_cases("cpu", name)
    assert found.state == OK, found.text


def test_no_case_of_tree_attention_is_left_out_but_windows():
    assert len(NPU_CASES) >= 18
    (found,) = ops.on_all_cases("cpu", "tree_attention npu_splitfuse")
    assert found.text.startswith(f"{len(NPU_CASES)} cases")
