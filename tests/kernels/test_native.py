# SPDX-License-Identifier: Apache-2.0
"""Compiling and loading C++ CPU ops, each time in a fresh process with a cache of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Prints the OpenMP runtimes mapped before and after an op was compiled, loaded and run.
PROBE = """
import re, torch
def mapped():
    names = re.findall(r"(/\\S*lib(?:gomp|iomp|omp)\\S*)", open("/proc/self/maps").read())
    return sorted(set(names))
torch.ones(100_000).exp().sum()
before = mapped()
from vllm_eagle_pangu.kernels.native import openmp_runtime
from vllm_eagle_pangu.kernels.tree_attention.cases import make_inputs, verify_case
from vllm_eagle_pangu.kernels.tree_attention import tree_attention
torch.set_num_threads(2)
inputs = make_inputs(verify_case("large", (3000,), (17,), heads=4, kv_heads=2, head_size=64))
tree_attention(**inputs)
assert not inputs["output"].isnan().any()
assert mapped() == before, (before, mapped())
print("runtime:", openmp_runtime())
"""


def start(cache: Path, code: str = PROBE, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ | {"EAGLE_PANGU_CACHE_DIR": str(cache)} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    return out


@pytest.fixture(scope="module")
def raced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A cache that two processes filled at once, and what they printed."""
    cache = tmp_path_factory.mktemp("cache")
    processes = [start(cache, LD_PRELOAD="") for _ in range(2)]
    return cache, [finish(process) for process in processes]


def test_no_second_openmp_runtime_is_mapped(raced: tuple[Path, list[str]]) -> None:
    for output in raced[1]:
        assert "libgomp" in output


def test_processes_that_race_leave_one_library_and_no_rubbish(
    raced: tuple[Path, list[str]],
) -> None:
    assert [path.suffix for path in raced[0].iterdir()] == [".so"]


def test_a_library_in_the_cache_is_loaded_without_compiling(
    raced: tuple[Path, list[str]],
) -> None:
    (library,) = raced[0].iterdir()
    written = library.stat().st_mtime_ns
    finish(start(raced[0], LD_PRELOAD=""))
    assert [path.stat().st_mtime_ns for path in raced[0].iterdir()] == [written]


def test_a_preloaded_intel_runtime_is_the_one_that_is_used(tmp_path: Path) -> None:
    intel = Path(sys.prefix) / "lib" / "libiomp5.so"
    if not intel.exists():
        pytest.skip("intel-openmp is not installed here")
    assert "libiomp5" in finish(start(tmp_path, LD_PRELOAD=str(intel)))


def test_a_missing_compiler_is_named_with_its_mend(tmp_path: Path) -> None:
    process = start(tmp_path, PATH=str(tmp_path))
    _, err = process.communicate(timeout=600)
    assert process.returncode != 0
    assert "g++ is not on PATH" in err and "verify_mode: reference" in err


def test_a_cache_that_cannot_be_written_is_named_with_its_mend(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    _, err = start(blocked / "cache").communicate(timeout=600)
    assert "Set EAGLE_PANGU_CACHE_DIR" in err
