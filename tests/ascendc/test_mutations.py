# SPDX-License-Identifier: Apache-2.0
"""The tests can fail: each deliberate fault of a kernel is seen by the comparison or the twin."""

import shutil
from collections.abc import Iterator

import pytest

from .checks import CORES, OPS, ORDERS, Inputs
from .mutants import MUTANTS, Mutant
from .twin import TwinKernel, TwinViolationError, compile_kernel
from .twin.compiler import op_folder
from .twin.ops import CoreOrder


@pytest.fixture(autouse=True, scope="module")
def cache_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Mutants are compiled anew each time and leave nothing in the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EAGLE_PANGU_CACHE_DIR", str(tmp_path_factory.mktemp("mutants")))
        yield


def mutate(op: str, mutant: Mutant) -> TwinKernel:
    source = (op_folder(op) / "op_kernel" / f"{op}.cpp").read_text()
    assert source.count(mutant.old) == 1, f"{mutant.old!r} stands {source.count(mutant.old)} times"
    return compile_kernel(op, source.replace(mutant.old, mutant.new), optimise=0)


def trials(op: str) -> Iterator[tuple[Inputs, int, CoreOrder]]:
    """All cases on one core and on several, then some of the random inputs of test_equality.py."""
    for _, inputs in OPS[op].case_inputs():
        yield inputs, 7, ORDERS[1]
    for seed in range(150):
        yield OPS[op].random_inputs(seed), CORES[seed % len(CORES)], ORDERS[seed % len(ORDERS)]


@pytest.mark.parametrize(
    ("op", "mutant"),
    [
        pytest.param(op, mutant, id=f"{op}-{mutant.what}")
        for op, mutants in MUTANTS.items()
        for mutant in mutants
    ],
)
def test_a_fault_in_the_kernel_is_noticed(op: str, mutant: Mutant) -> None:
    kernel = mutate(op, mutant)
    for inputs, cores, order in trials(op):
        try:
            OPS[op].verify(kernel, inputs, cores, order)
        except (AssertionError, TwinViolationError):
            return
    pytest.fail(f"{op} passes although {mutant.what}")


@pytest.mark.parametrize(
    ("op", "header", "old", "new"),
    [
        ("tree_accept", "op_kernel/tree_accept_tiling_data.h", "kGroup = 4", "kGroup = 1"),
        ("draft_batch", "op_kernel/draft_batch_tiling_data.h", "kBlock = 4", "kBlock = 2"),
        ("tree_build", "op_host/tree_build_tiling.h", "group = 32;", "group = 8;"),
        ("kv_commit", "op_kernel/kv_commit_tiling_data.h", "kGroup = 4", "kGroup = 3"),
    ],
)
def test_a_tiling_by_which_cores_share_a_block_is_noticed(op, header, old, new, tmp_path):
    shutil.copytree(op_folder(op), tmp_path, dirs_exist_ok=True)
    text = (tmp_path / header).read_text()
    assert text.count(old) == 1
    (tmp_path / header).write_text(text.replace(old, new))
    kernel = compile_kernel(op, folder=tmp_path, optimise=0)
    with pytest.raises(TwinViolationError, match=r"the 32-byte block at byte .* is shared by"):
        for inputs, cores, order in trials(op):
            OPS[op].verify(kernel, inputs, cores, order)
