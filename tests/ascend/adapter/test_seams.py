# SPDX-License-Identifier: Apache-2.0
"""The table of what we rely on of vllm-ascend, held to the source of the installed one.

Nothing of vllm-ascend is imported. Each entry is a case of its own, named after what it relies on.
"""

import ast
from pathlib import Path

import pytest

import vllm_eagle_pangu
from vllm_eagle_pangu.compat.ascend_seams import ASCEND_SEAMS
from vllm_eagle_pangu.compat.source_seam import SourceSeam

PACKAGE = Path(vllm_eagle_pangu.__file__).parent
FILES = [*sorted((PACKAGE / "engine/ascend").glob("*.py")), PACKAGE / "compat/ascend.py"]


@pytest.mark.parametrize("seam", ASCEND_SEAMS, ids=str)
def test_vllm_ascend_has(seam):
    problem = seam.problem()
    assert problem is None, f"{seam}: {problem}"


def test_no_entry_stands_twice():
    assert len(set(ASCEND_SEAMS)) == len(ASCEND_SEAMS)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_table_has_what_a_file_imports(file):
    names = {
        (node.module, alias.name)
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vllm_ascend")
        for alias in node.names
    }
    missing = {f"{module}.{name}" for module, name in names if _entry(module, name) is None}
    assert not missing


def _entry(module: str, name: str) -> SourceSeam | None:
    return next((s for s in ASCEND_SEAMS if (s.owner, s.relied_on) == (module, name)), None)


@pytest.mark.parametrize(
    "seam, problem",
    [
        (SourceSeam("vllm_ascend.no_such", "Name", "NAME"), "there is no module"),
        (SourceSeam("vllm_ascend.worker.worker:Gone", "name", "MADE"), "defines no Gone"),
        (
            SourceSeam("vllm_ascend.worker.worker:NPUWorker.shutdown", "when", "TAKES"),
            "parameter 1 is gone, not when",
        ),
    ],
)
def test_what_is_missing_is_named(seam, problem):
    assert problem in (seam.problem() or "")
