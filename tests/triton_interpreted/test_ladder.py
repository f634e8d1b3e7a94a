# SPDX-License-Identifier: Apache-2.0
"""The rung of a GPU's ladder (`eagle-pangu doctor --ladder`) that its kernels stand on."""

from dataclasses import replace

from vllm_eagle_pangu.doctor import ops
from vllm_eagle_pangu.doctor.device import CUDA
from vllm_eagle_pangu.doctor.finding import OK, WRONG
from vllm_eagle_pangu.kernels.tree_accept import tree_accept

# The others' cases take the interpreter long: they are in this folder's other tests.
QUICK = ("draft_batch", "kv_commit", "tree_accept", "tree_prune")


def test_the_kernels_of_a_gpus_worker_agree_with_the_reference():
    named = [name for name in ops.names(CUDA) if name.split()[0] in QUICK]
    assert len(named) == len(QUICK) and all(name.endswith(" triton") for name in named)
    found = {finding.name: finding for finding in ops.on_all_cases("cpu", *named)}
    assert list(found) == named
    assert {finding.state for finding in found.values()} == {OK}, found


def test_one_that_errs_is_named(monkeypatch):
    right = tree_accept.of("triton")

    def wrong(*args, **kwargs):
        paths = right(*args, **kwargs)
        return replace(paths, length=paths.length + 1)

    monkeypatch.setitem(tree_accept._functions, "triton", wrong)
    (finding,) = ops.on_all_cases("cpu", "tree_accept triton")
    assert finding.state == WRONG and "differs from the reference" in finding.text
