# SPDX-License-Identifier: Apache-2.0
"""Compiles an AscendC op_kernel against the twin with g++, into the cache of the C++ CPU ops."""

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from vllm_eagle_pangu import kernels
from vllm_eagle_pangu.kernels.cache_folder import cache_dir

from .launch import TwinKernel

_TWIN = Path(__file__).parent
_FLAGS = ("-std=c++17", "-fPIC", "-shared", "-Wall", "-Werror", "-Wno-unknown-pragmas")


def op_folder(op: str) -> Path:
    """The folder of an op's AscendC sources."""
    return Path(kernels.__file__).parent / op / "ascendc"


def compile_kernel(
    op: str, source: str | None = None, folder: Path | None = None, optimise: int = 1
) -> TwinKernel:
    """The op's kernel and tiling on the twin, compiled unless an earlier process did.

    `source`: another text for op_kernel/<op>.cpp; `folder`: another op_host and op_kernel.
    Raises RuntimeError when g++ is missing or refuses the sources.
    """
    folder = folder or op_folder(op)
    kernel = folder / "op_kernel" / f"{op}.cpp"
    source = kernel.read_text() if source is None else source
    compiler = shutil.which("g++")
    if compiler is None:
        raise RuntimeError(f"cannot compile {op} for the twin: g++ is not on PATH; install it")
    launcher = _launcher(op)
    headers = sorted([*_TWIN.glob("*.h"), *folder.glob("op_*/*.h")])
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True).stdout
    key = hashlib.sha256(version)
    for part in (*_FLAGS, f"-O{optimise}", source, launcher, *(h.read_text() for h in headers)):
        key.update(part.encode() + b"\0")
    library = cache_dir() / f"twin-{op}-{key.hexdigest()[:24]}.so"
    if not library.exists():
        flags = [*_FLAGS, f"-O{optimise}", f"-I{_TWIN}"]
        flags += [f"-I{folder / 'op_kernel'}", f"-I{folder / 'op_host'}"]
        _compile(op, [compiler, *flags], f'#line 1 "{op}.cpp"\n{source}\n{launcher}', library)
    return TwinKernel(op, ctypes.CDLL(str(library)))


def _launcher(op: str) -> str:
    """The C ABI around kernel and tiling, both compiled in one translation unit."""
    camel = "".join(word.capitalize() for word in op.split("_"))
    return (
        f'#include "{op}_tiling.h"\n#include "twin_launch.h"\n'
        f"TWIN_LAUNCHER({op}, {camel}Shape, {camel}TilingData)\n"
    )


def _compile(op: str, command: list[str], text: str, library: Path) -> None:
    """In a folder beside `library`, then renamed: processes may race."""
    library.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent, prefix=f".twin-{op}-") as folder:
        source, built = Path(folder) / f"{op}.cpp", Path(folder) / f"{op}.so"
        source.write_text(text)
        run = subprocess.run(
            [*command, str(source), "-o", str(built)], check=False, capture_output=True, text=True
        )
        if run.returncode:
            raise RuntimeError(f"g++ refused {op} on the twin:\n{run.stderr[-4000:]}")
        os.replace(built, library)
