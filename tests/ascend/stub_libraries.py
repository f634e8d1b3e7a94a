# SPDX-License-Identifier: Apache-2.0
"""`python stub_libraries.py`: empty libraries in the place of CANN's, so that torch_npu imports.

torch_npu links against CANN's runtime, which has no package. Its op schemas and Meta shapes need
none of it: every symbol that nothing else defines becomes a function that does nothing, in files
beside torch_npu's own libraries. A tensor on an "npu" device still ends the process.
"""

import importlib.util
import shutil
import subprocess
import tempfile
from pathlib import Path

# What torch_npu 2.11.0 links against and no wheel of ours has.
LIBRARIES = ("hccl", "ascendcl", "acl_op_compiler", "ge_runner", "graph", "acl_tdt_channel", "atb")


def symbols(library: Path, which: str) -> set[str]:
    """Unversioned dynamic symbols; `which`: "undefined" or "defined". glibc's have versions."""
    command = ["nm", "--dynamic", f"--{which}-only", "--format=just-symbols", str(library)]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return {name for name in listed if "@" not in name}


def source(undefined: set[str]) -> str:
    """A C file of functions that return 0."""
    return "".join(f"long {name}(void) {{ return 0; }}\n" for name in sorted(undefined))


def package_folder(name: str) -> Path:
    """The folder of an installed package, which is not imported."""
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.origin is not None, name
    return Path(spec.origin).parent


def main() -> None:
    torch, torch_npu = package_folder("torch"), package_folder("torch_npu")
    stubs = {torch_npu / "lib" / f"lib{name}.so" for name in LIBRARIES}
    users = {file for file in torch_npu.rglob("*.so") if file not in stubs}
    defined = set().union(*(symbols(x, "defined") for x in users | {*torch.glob("lib/*.so*")}))
    undefined = set().union(*(symbols(file, "undefined") for file in users)) - defined
    # The interpreter's own; weak ones that may stay undefined.
    undefined = {name for name in undefined if not name.startswith(("Py", "_Py", "_ITM_", "__"))}
    with tempfile.TemporaryDirectory() as folder:
        code, library = Path(folder, "stubs.c"), Path(folder, "stubs.so")
        code.write_text(source(undefined))
        flags = ["-shared", "-fPIC", "-fno-builtin", "-w"]
        subprocess.run(["cc", *flags, "-o", library, code], check=True)
        for stub in stubs:
            shutil.copyfile(library, stub)
    print(f"{len(undefined)} symbols of CANN stubbed in {len(stubs)} libraries")


if __name__ == "__main__":
    main()
