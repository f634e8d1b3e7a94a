# SPDX-License-Identifier: Apache-2.0
"""Compiles C++ CPU ops at first use and loads them: plain C ABI, no torch headers, only g++.

An op shares torch's OpenMP thread pool: two pools in one process spin against each other.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vllm_eagle_pangu.kernels.cache_folder import cache_dir

# IEEE semantics stay on: the ops let a NaN in live input through to the output. No errno and no
# traps are what the vectoriser needs.
_FLAGS = (
    "-std=c++17",
    "-O3",
    "-march=native",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fopenmp",
    "-fPIC",
    "-shared",
    "-Wno-psabi",
)


@functools.cache
def load_native(name: str, folder: Path) -> ctypes.CDLL:
    """The library of `folder`/*.cpp, compiled now unless an earlier process left it in the cache.

    Compiling takes seconds, once per user, source, compiler, CPU and OpenMP runtime. Raises
    RuntimeError when g++ is missing or fails, or when the cache folder cannot be written.
    """
    sources = sorted(folder.glob("*.cpp"))
    assert sources, f"no C++ sources in {folder}"
    runtime = openmp_runtime()
    compiler, version = _compiler(name)
    key = hashlib.sha256()
    for part in (name, version, " ".join(_FLAGS), runtime, platform.machine(), _cpu_flags()):
        key.update(part.encode() + b"\0")
    for path in sorted([*sources, *folder.glob("*.h")]):
        key.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    library = cache_dir() / f"{name}-{key.hexdigest()[:24]}.so"
    if not library.exists():
        _compile(name, [compiler, *_FLAGS, *map(str, sources), runtime], library)
    return ctypes.CDLL(str(library))


NUMBERS = frozenset({bool, int, float, type(None)})


@dataclass(frozen=True)
class NativeOp:
    """The C function of an op, called with what its `Call` holds; compiles as `load_native` does.

    `module`: the file beside whose folder cpu/ its sources lie; `call`: the fields of `Call`, for
    `struct`; `function`: its name where it is not the op's; `result`: its ctypes type, None for
    void.
    """

    module: str
    op: str
    call: str
    function: str | None = None
    result: Any = None

    def __call__(self, *fields: torch.Tensor | float | None) -> Any:
        """Tensors go by address, contiguous, so what is written must be so; None is 0."""
        # A step makes a dozen calls: a set of types is asked in half the time of `isinstance`.
        plain: list[float] = []
        held: list[torch.Tensor] = []
        for each in fields:
            if type(each) in NUMBERS:
                plain.append(each or 0)
                continue
            tensor: torch.Tensor = each
            # Held until the call returns.
            held.append(tensor if tensor.is_contiguous() else tensor.contiguous())
            plain.append(held[-1].data_ptr())
        return self.entry(self.pack(*plain))

    def prepare(self) -> Callable[[bytes], Any]:
        """Compile it, unless an earlier process did."""
        return self.entry

    @functools.cached_property
    def pack(self) -> Callable[..., bytes]:
        return struct.Struct(self.call).pack

    @functools.cached_property
    def entry(self) -> Callable[[bytes], Any]:
        folder = Path(self.module).parent
        library = load_native(folder.name, folder / "cpu")
        call_bytes = library[f"{self.op}_call_bytes"]
        call_bytes.restype = ctypes.c_int64
        size = struct.calcsize(self.call)
        assert call_bytes() == size, f"{self.op}: the C++ Call and {self.call} differ"
        found = library[self.function or self.op]
        found.argtypes, found.restype = (ctypes.c_char_p,), self.result
        return found


@functools.cache
def openmp_runtime() -> str:
    """The file that torch's own OpenMP calls resolve to.

    The process may map several runtimes (other wheels bundle their own): what counts is the
    symbol that the dynamic linker gives to torch: first the global scope, where a preloaded
    libiomp5 stands, then what libtorch_cpu itself links.
    """
    scopes = (None, str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    for scope in scopes:
        try:
            entry = ctypes.CDLL(scope).GOMP_parallel
        except (OSError, AttributeError):
            continue
        return os.path.realpath(_file_of(ctypes.cast(entry, ctypes.c_void_p)))
    raise RuntimeError(
        "cannot compile the C++ CPU ops: torch's OpenMP runtime was not found (this torch is built"
        " without OpenMP). Use a torch wheel with OpenMP, or set `verify_mode: reference`."
    )


class _SymbolInfo(ctypes.Structure):
    """`Dl_info` of dlfcn.h."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def _file_of(function: ctypes.c_void_p) -> str:
    info = _SymbolInfo()
    found = ctypes.CDLL(None).dladdr(function, ctypes.byref(info))
    assert found, "dladdr knows no file for a symbol that dlsym just gave"
    return os.fsdecode(info.file)


def _compiler(name: str) -> tuple[str, str]:
    """Path and version text of g++."""
    path = shutil.which("g++")
    if path is None:
        raise RuntimeError(
            f"cannot compile the C++ CPU op {name}: g++ is not on PATH. Install g++ (Debian and"
            " Ubuntu: `apt install g++`), or set `verify_mode: reference`, which needs none."
        )
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=True)
    return path, version.stdout


def _cpu_flags() -> str:
    """What -march=native looks at: a cache folder may be shared by different machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = ("flags", "Features", "CPU part", "model name", "isa", "cpu family", "model")
    kept = {line for line in lines if line.split(":")[0].strip() in names}
    return "\n".join(sorted(kept))


def _compile(name: str, command: Sequence[str], library: Path) -> None:
    """Into a temporary folder beside `library`, then renamed: processes may race."""
    try:
        library.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = tempfile.TemporaryDirectory(dir=library.parent, prefix=f".{name}-")
    except OSError as error:
        raise RuntimeError(
            f"cannot compile the C++ CPU op {name}: the cache folder {library.parent} cannot be"
            f" written ({error}). Set EAGLE_PANGU_CACHE_DIR to a folder that can."
        ) from error
    with temporary as folder:
        built = f"{folder}/{library.name}"
        run = subprocess.run([*command, "-o", built], check=False, capture_output=True, text=True)
        if run.returncode:
            raise RuntimeError(
                f"g++ failed on the C++ CPU op {name}; mend the compiler, or set `verify_mode:"
                f" reference`.\n{' '.join(command)}\n{run.stderr[-4000:]}"
            )
        os.replace(built, library)
