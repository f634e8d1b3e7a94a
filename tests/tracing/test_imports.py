# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys

import pytest

PROGRAM = """
import importlib, sys
refused, modules = sys.argv[1].split(","), sys.argv[2].split(",")

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in refused:
            raise AssertionError(f"imported {name}")

sys.meta_path.insert(0, Refuse())
for module in modules:
    importlib.import_module("vllm_eagle_pangu.tracing." + module)
"""


@pytest.mark.parametrize(
    ("refused", "modules"),
    [
        ("vllm,vllm_ascend", "writer,dump,replay,target_draws,command,reader"),
        ("vllm,torch,transformers", "config,reader,provenance,manifest,command"),
    ],
    ids=["tracing needs no vLLM", "reading needs no torch"],
)
def test_modules_do_without(refused: str, modules: str):
    command = [sys.executable, "-c", PROGRAM, refused, modules]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
