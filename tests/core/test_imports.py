# SPDX-License-Identifier: Apache-2.0
import ast
import subprocess
import sys
from pathlib import Path

import pytest

import vllm_eagle_pangu
from vllm_eagle_pangu import kernels

PACKAGE = "vllm_eagle_pangu"
# What each part may import of the package: arrows point down, `config` being the user's words.
MAY_IMPORT = {
    "kernels": {"kernels"},
    "core": {"kernels", "core"},
    "step": {"kernels", "core", "step"},
    "engine": {
        *("kernels", "core", "step", "engine", "config", "env", "tracing"),
        # Workers register the attention backends of vLLM's version, which stand on these.
        "compat",
    },
}

# Modules whose import compiles native code are imported too: they must not need vLLM either.
WALK = """
import importlib, pkgutil, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("vllm", "vllm_ascend"):
            raise AssertionError(f"imported {name}")

sys.meta_path.insert(0, Refuse())
import vllm_eagle_pangu.core, vllm_eagle_pangu.kernels, vllm_eagle_pangu.step
seen = 0
for package in (vllm_eagle_pangu.core, vllm_eagle_pangu.kernels, vllm_eagle_pangu.step):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
        seen += 1
print(seen)
"""


def test_core_kernels_and_step_never_import_vllm():
    run = subprocess.run([sys.executable, "-c", WALK], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) > 15


def imported(file: Path) -> set[str]:
    """Names of the package's parts that a file imports, for types too."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.split(".")[0] == PACKAGE}
    return found


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_a_part_imports_only_what_lies_below_it(part):
    """design.md, section 5."""
    above = Path(vllm_eagle_pangu.__file__).parent / part
    folder = Path(kernels.__file__).parent if part == "kernels" else above
    files = list(folder.rglob("*.py"))
    assert len(files) > 5
    wrong = {str(file): imported(file) - MAY_IMPORT[part] for file in files}
    assert not {file: names for file, names in wrong.items() if names}


# Where vllm-ascend's classes stand behind ours; loaded by the names in `compat/ascend.py` alone.
ASCEND = "engine/ascend"
# These import vllm-ascend: the folder, and the patch of its platform, inside of a function.
MAY_NAME_ASCEND = (ASCEND, "compat/ascend.py")


def test_only_its_own_folder_imports_the_ascend_engine_or_vllm_ascend():
    package = Path(vllm_eagle_pangu.__file__).parent
    wrong = []
    for file in sorted(package.rglob("*.py")):
        where = str(file.relative_to(package))
        text = [
            (node.module or "") if isinstance(node, ast.ImportFrom) else node.names[0].name
            for node in ast.walk(ast.parse(file.read_text()))
            if isinstance(node, (ast.Import, ast.ImportFrom))
        ]
        if not where.startswith(ASCEND):
            wrong += [(where, name) for name in text if f"{PACKAGE}.engine.ascend" in name]
        if not where.startswith(MAY_NAME_ASCEND):
            wrong += [(where, name) for name in text if name.split(".")[0] == "vllm_ascend"]
    assert not wrong


def test_what_is_known_of_vllm_ascend_loads_without_it():
    code = "import vllm_eagle_pangu.compat.ascend, sys; print(*sys.modules, sep='\\n')"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in run.stdout.split()}
    assert "vllm_eagle_pangu" in loaded and not loaded & {"vllm", "vllm_ascend"}
