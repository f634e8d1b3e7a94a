# SPDX-License-Identifier: Apache-2.0
"""A test that leaves torch's thread state changed is named; those behind it are not blamed."""

import os
import re
import subprocess
import sys
from pathlib import Path

TESTS = """
import pytest
import torch

PYTHON = torch._C.DispatchKey.Python


@pytest.fixture(scope="module")
def keeper():
    torch._C._dispatch_tls_set_dispatch_key_included(torch._C.DispatchKey.Meta, True)


def test_before_all():
    torch.ones(1)


def test_leak_an_excluded_key():
    torch._C._dispatch_tls_set_dispatch_key_excluded(PYTHON, True)


def test_behind():
    torch.ones(1)


def test_leak_of_a_fixture_of_the_module(keeper):
    pass


def test_leak_a_mode():
    torch.device("cpu").__enter__()


def test_leak_no_gradients():
    torch.set_grad_enabled(False)


def test_that_puts_back_what_it_changed():
    with torch.inference_mode():
        pass
"""


def test_the_tests_that_changed_the_state_fail_and_no_other(tmp_path):
    (tmp_path / "test_it.py").write_text(TESTS)
    command = ["pytest", "-p", "thread_state", "-p", "no:randomly", "-p", "no:cacheprovider", "-ra"]
    done = subprocess.run(
        [sys.executable, "-m", *command, "test_it.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    named = re.findall(r"_ ERROR at teardown of (\w+) _+\ntorch's thread state was", done.stdout)
    assert named == [
        "test_leak_an_excluded_key",
        "test_leak_of_a_fixture_of_the_module",
        "test_leak_a_mode",
        "test_leak_no_gradients",
    ], done.stdout
    assert "7 passed, 4 errors" in done.stdout
