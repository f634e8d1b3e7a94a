# SPDX-License-Identifier: Apache-2.0
"""The demo as `make demo` runs it, shortened: its servers, its prompts, its verdict."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import vllm

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(
        vllm.__version__.startswith("0.23"),
        reason="vLLM 0.23's own eagle3, which the demo measures, does not start on CPU",
    ),
]

COMMAND = "-m vllm_eagle_pangu.cli demo --prompts 2 --tokens 32 --chains 1 --plant-wrong-token"


def test_a_planted_wrong_token_fails_the_demo_which_names_it_and_nothing_else(tmp_path: Path):
    found = tmp_path / "figures.json"
    command = [sys.executable, *COMMAND.split(), f"--json={found}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200)

    assert done.returncode == 1, done.stderr
    planted = int(done.stdout.split("answer to prompt 0: token ")[1].split(".")[0])
    figures = json.loads(found.read_text())
    wrong = {
        (method, index): judged["wrong"]
        for method, differences in figures["differences"].items()
        for index, judged in differences.items()
        if not judged["near_tie"]
    }
    assert wrong == {("tree", "0"): planted}
    assert f"token {planted} lies" in done.stdout
    # Decode and prefill in bfloat16, each against float32.
    assert figures["rounding"]["compared"] == 2 * 2 * 32
