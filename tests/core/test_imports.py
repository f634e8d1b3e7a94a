# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys

# Modules whose import compiles native code are imported too: they must not need vLLM either.
WALK = """
import importlib, pkgutil, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("vllm", "vllm_ascend"):
            raise AssertionError(f"imported {name}")

sys.meta_path.insert(0, Refuse())
import vllm_eagle_pangu.core, vllm_eagle_pangu.kernels
seen = 0
for package in (vllm_eagle_pangu.core, vllm_eagle_pangu.kernels):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
        seen += 1
print(seen)
"""


def test_core_and_kernels_never_import_vllm():
    run = subprocess.run([sys.executable, "-c", WALK], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) > 15
