# SPDX-License-Identifier: Apache-2.0
"""The host side of each op under a stub of CANN's host API: compiles, and agrees with the kernel.

The stub (cann_stub/) is ours, so this shows that definition, shape inference, tiling and kernel
fit one another, not that CANN accepts them.
"""

import functools
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from .checks import kernel_of
from .test_limits import SHAPES
from .twin.compiler import op_folder

STUB = Path(__file__).parent / "cann_stub"
FLOAT, FLOAT16, INT32, INT64, BOOL = 0, 1, 3, 4, 5
CORES = 40  # of the stub's platform

# Per op: each input's type, tensors and dimensions; attributes; types and dimensions of outputs.
# The sizes are those of test_limits.SHAPES.
B, R, D, M = 8, 64, 6, 63
Input = tuple[int, int, tuple[int, ...]]
HOSTS: dict[str, tuple[dict[str, Input], dict[str, int], list[tuple[int, ...]]]] = {
    "tree_accept": (
        {
            "draws": (INT64, 1, (B, R)),
            "tokens": (INT64, 1, (B, R)),
            "parent": (INT64, 1, (B, R)),
            "valid": (BOOL, 1, (B, R)),
        },
        {"depth": D},
        [(INT64, B, D + 1), (INT64, B), (INT64, B, D + 1)],
    ),
    "tree_build": (
        {
            "root_tokens": (INT64, 1, (B,)),
            "tokens": (INT64, 1, (B, 328)),
            "scores": (FLOAT, 1, (B, 328)),
            "parents": (INT64, 1, (B, 328)),
        },
        {"depth": D, "nodes": M, "width": 8},
        [
            *[(INT64, B, R)] * 3,
            (BOOL, B, R),
            (BOOL, B, R, R),
            (FLOAT, B, R),
            (INT32, B, R, 2),
            *[(INT64, B, R)] * 2,
        ],
    ),
    "draft_batch": (
        {
            "input_ids": (INT32, 1, (512,)),
            "positions": (INT64, 1, (512,)),
            "linear_slots": (INT64, 1, (512,)),
            "query_start": (INT32, 1, (B + 1,)),
            "is_tree": (BOOL, 1, (B,)),
            "next_tokens": (INT64, 1, (B,)),
            "path_rows": (INT64, 1, (B, D + 1)),
            "path_length": (INT64, 1, (B,)),
            "path_output": (INT64, 1, (B, D + 1)),
        },
        {"draft_rows": 56, "depth": D},
        [*[(INT64, 56)] * 4, (INT64, B + 1), (INT64, B)],
    ),
    "kv_commit": (
        {
            "path_rows": (INT64, 1, (B, D + 1)),
            "linear_slots": (INT64, 1, (B, R)),
            "key_scratch": (FLOAT16, 2, (512, 8, 128)),
            "value_scratch": (FLOAT16, 2, (512, 8, 128)),
            "key_cache": (FLOAT16, 2, (32, 128, 8, 128)),
            "value_cache": (FLOAT16, 2, (32, 128, 8, 128)),
        },
        {},
        [(INT64, B, R), *[(FLOAT16, 32, 128, 8, 128)] * 4],
    ),
}


def camel(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


@functools.cache
def host_program(op: str, folder: Path) -> Path:
    """All of an op's op_host files with the stub, as one program."""
    name = camel(op)
    source = "".join(
        f'#include "{op_folder(op) / "op_host" / f"{op}_{part}.cpp"}"\n'
        for part in ("def", "infershape", "tiling")
    )
    outputs = len(HOSTS[op][2])
    source += (
        '#include "host_driver.h"\n'
        f"int main() {{ return RunHost<{name}TilingData>(ops::definition_of_{name},"
        f" ops::infershape_of_{name}, optiling::tiling_of_{name}, {outputs}); }}\n"
    )
    path = folder / f"{op}.cpp"
    path.write_text(source)
    flags = ["-std=c++17", "-O0", "-Wall", "-Wextra", "-Werror", f"-I{STUB}"]
    run = subprocess.run(
        ["g++", *flags, str(path), "-o", str(folder / op)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    return folder / op


def run_host(program: Path, inputs: Mapping[str, Input], attributes: dict[str, int]) -> list[str]:
    lines = [
        f"input {name} {dtype} {tensors} {' '.join(map(str, dimensions))}"
        for name, (dtype, tensors, dimensions) in inputs.items()
    ]
    lines += [f"attribute {name} {value}" for name, value in attributes.items()]
    run = subprocess.run(
        [program], input="\n".join(lines), check=True, capture_output=True, text=True
    )
    return run.stdout.splitlines()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("op_host")


@pytest.mark.parametrize("op", HOSTS)
def test_host_gives_the_shapes_and_the_tiling_that_the_twin_runs_with(op, folder):
    inputs, attributes, outputs = HOSTS[op]
    lines = run_host(host_program(op, folder), inputs, attributes)
    shapes = [tuple(map(int, line.split()[1:])) for line in lines if line.split()[0] == "shape"]
    assert shapes == outputs
    tiling = kernel_of(op).tiling(SHAPES[op] | {"cores": CORES})
    assert lines[-1] == f"tiling {tiling.hex()}"


@pytest.mark.parametrize("op", HOSTS)
def test_kernel_takes_the_definitions_inputs_and_outputs_in_order(op, folder):
    lines = run_host(host_program(op, folder), *HOSTS[op][:2])
    inputs, outputs = lines[0].split()[1:], lines[1].split()[1:]
    names = [*inputs, *(f"{name}_out" if name in inputs else name for name in outputs)]
    kernel = (op_folder(op) / "op_kernel" / f"{op}.cpp").read_text()
    signature = re.search(rf"__aicore__ void {op}\((.*?)\)", kernel, re.S)
    assert signature is not None
    expected = [name[0].lower() + camel(name)[1:] for name in names]
    assert re.findall(r"GM_ADDR (\w+)", signature[1]) == [*expected, "workspace", "tiling"]


@pytest.mark.parametrize(
    ("op", "name", "wrong", "message"),
    [
        ("tree_accept", "parent", (INT64, 1, (B, R - 1)), r"must all be \[B, R\]"),
        ("tree_build", "scores", (FLOAT, 1, (B, 327)), r"\[B, W \+ \(D-1\)\*W\*W\]"),
        ("draft_batch", "positions", (INT64, 1, (511,)), r"the rest \[B\] or \[N\]"),
        ("draft_batch", "path_output", (INT64, 1, (B, D)), r"paths \[B, P\]"),
        ("kv_commit", "value_cache", (FLOAT16, 2, (32, 64, 8, 128)), "alike"),
        ("kv_commit", "value_scratch", (FLOAT, 2, (512, 8, 128)), "alike"),
        ("kv_commit", "value_scratch", (FLOAT16, 1, (512, 8, 128)), "alike"),
        ("kv_commit", "key_scratch", (FLOAT16, 2, (100, 8, 128)), "alike"),
    ],
)
def test_host_refuses_inputs_that_do_not_fit_together(op, name, wrong, message, folder):
    inputs, attributes, _ = HOSTS[op]
    lines = run_host(host_program(op, folder), inputs | {name: wrong}, attributes)
    assert re.match(f"refused {op}: .*{message}", lines[-1])


def test_host_refuses_what_tiling_refuses_in_its_words(folder):
    inputs, _, _ = HOSTS["tree_accept"]
    lines = run_host(host_program("tree_accept", folder), inputs, {"depth": 129})
    assert lines[-1] == "refused tree_accept: D=129 is not in 0 to 128"
