# SPDX-License-Identifier: Apache-2.0
"""The demo as `make demo` runs it, shortened: its servers, its prompts, its verdict."""

import subprocess
import sys

import pytest
import vllm

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(
        vllm.__version__.startswith("0.23"),
        reason="vLLM 0.23's own eagle3, which the demo measures, does not start on CPU",
    ),
]

COMMAND = "-m vllm_eagle_pangu.cli demo --prompts 2 --tokens 16 --chains 1 --plant-wrong-token"


def test_a_planted_wrong_token_fails_the_demo_which_names_it_and_nothing_else():
    command = [sys.executable, *COMMAND.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200)

    assert done.returncode == 1, done.stderr
    planted = int(done.stdout.split("answer to prompt 0: token ")[1].split(".")[0])
    (row,) = [line for line in done.stdout.splitlines() if line.startswith("tree ")]
    assert row.endswith(" 1 WRONG") and done.stdout.count("WRONG") == 2
    (judgement,) = [line for line in done.stdout.splitlines() if line.endswith("behind: WRONG")]
    assert judgement.startswith("tree, prompt 0: ") and f"token {planted} lies" in judgement
    # Decode and prefill in bfloat16, each against float32.
    assert f"in {2 * 2 * 16} comparisons" in done.stdout
