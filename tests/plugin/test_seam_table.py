# SPDX-License-Identifier: Apache-2.0
"""The table of what we touch of vLLM: the installed vLLM has it, and our files agree with it.

Each entry is a case of its own, whose name is the name that is gone. What the agreement cannot see
is said in seam_reading.py; test_seams.py holds signatures and meanings.
"""

import inspect
import re
from functools import cache

import pytest
import vllm
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from vllm_eagle_pangu.compat import PLATFORMS, SUPPORTED, installed_line, seam_entry
from vllm_eagle_pangu.compat.seams import SEAMS

from .seam_reading import FILES, PACKAGE, imports, modules, touched

INSTALLED = installed_line()
# A line that we do not support yet is held to what the newest one has.
LINE = INSTALLED if INSTALLED in SUPPORTED else SUPPORTED[-1]
IMPORTABLE = [file for file in FILES if LINE == "0.23" or not file.endswith("_0_23.py")]


@cache
def words(file: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", (PACKAGE / file).read_text()))


@pytest.mark.parametrize("seam", SEAMS, ids=str)
def test_vllm_has(seam):
    if LINE not in seam.lines:
        pytest.skip(f"of vLLM {' and '.join(seam.lines)}")
    files = ", ".join(file for file in FILES if seam.name in words(file))
    assert seam.exists(), f"vLLM {vllm.__version__} has no {seam}, see {files}"


def missing() -> set[str]:
    """The names whose cases fail."""
    return {str(seam) for seam in SEAMS if LINE in seam.lines and not seam.exists()}


def test_a_method_that_goes_is_named(monkeypatch):
    before = missing()
    monkeypatch.delattr(GPUModelRunner, "_sample")
    assert missing() - before == {"vllm.v1.worker.gpu_model_runner.GPUModelRunner._sample"}


def test_an_attribute_that_is_no_longer_set_is_named(monkeypatch):
    source = inspect.getsource

    def renamed(owner: object) -> str:
        return source(owner).replace("self.num_tokens_no_spec", "self.num_tokens")

    before = missing()
    monkeypatch.setattr(inspect, "getsource", renamed)
    seam_entry._made.cache_clear()
    after = missing()
    seam_entry._made.cache_clear()
    assert after - before == {"vllm.v1.worker.gpu_input_batch.InputBatch.num_tokens_no_spec"}


def test_no_entry_stands_twice_and_platforms_are_ours():
    assert len({(seam.owner, seam.name) for seam in SEAMS}) == len(SEAMS)
    platforms = set().union(*PLATFORMS.values())
    assert {seam.platform for seam in SEAMS} <= {None, *platforms}


@pytest.mark.parametrize("file", IMPORTABLE)
def test_a_file_can_be_imported(file):
    assert not isinstance(modules()[file], str), modules()[file]


@pytest.mark.parametrize("file", FILES)
def test_the_table_has_every_name_that_a_file_touches(file):
    if file not in IMPORTABLE:
        pytest.skip("what its classes override is vLLM 0.23's")
    reasons = [modules()[ours] for ours in IMPORTABLE if isinstance(modules()[ours], str)]
    if reasons:
        pytest.skip(f"what is vLLM's and what ours is not known: {reasons}")
    known = {seam.name for seam in SEAMS}
    lacking = {f"{name} (line {line})" for name, line in touched(file).items() if name not in known}
    assert not lacking, f"{file} touches what compat/seams.py has not: {sorted(lacking)}"


@pytest.mark.parametrize("file", FILES)
def test_the_table_has_every_name_that_a_file_imports(file):
    known = {(seam.owner, seam.name) for seam in SEAMS}
    modules = {owner for owner, _ in known}
    lacking = {
        path
        for path in imports(file).values()
        if path not in modules and tuple(path.split(":")) not in known
    }
    assert not lacking, f"{file} imports what compat/seams.py has not: {sorted(lacking)}"


def test_the_table_has_no_name_that_no_file_touches():
    ours = frozenset().union(*map(words, FILES))
    stale = {str(s) for s in SEAMS if s.name not in ours and not s.name.startswith("__")}
    assert not stale, f"compat/seams.py has what no file of ours touches: {sorted(stale)}"
