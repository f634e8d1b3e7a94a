# SPDX-License-Identifier: Apache-2.0
"""What is published says nothing of the machine that it is from."""

import socket
import sys
from pathlib import Path

from vllm_eagle_pangu import env
from vllm_eagle_pangu.measure.files import facts
from vllm_eagle_pangu.measure.scrubbed import scrubbed

ROOT = Path(__file__).resolve().parents[2]


def test_no_folder_host_or_address_of_this_machine_is_named(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "build-7")
    said = {
        f"in {ROOT}/kernels/x.py": "in {source}/kernels/x.py",
        f"{Path.home()}/models": "~/models",
        "LD_PRELOAD=/opt/a/libx.so:/opt/b/liby.so": "LD_PRELOAD={path}/libx.so:{path}/liby.so",
        "file:///data/me/log.txt": "file://{path}/log.txt",
        "tcp://10.1.2.3:5000 on build-7": "tcp://{address}:5000 on {host}",
        "https://vllm.ai/en/latest, 70 tokens/s": "https://vllm.ai/en/latest, 70 tokens/s",
        "torch 2.13.0.1 of build-70": "torch 2.13.0.1 of build-70",
    }
    assert {text: scrubbed(text) for text in said} == said


def test_neither_do_the_facts_beside_a_figure(monkeypatch):
    monkeypatch.setenv(env.LEARNT_DIR, "/data/me/runs/learnt")
    monkeypatch.setattr(sys, "argv", ["/data/me/bench.py", "--pair", "runs/pair"])
    found = facts()
    assert found["environment"][env.LEARNT_DIR] == "{path}/learnt"
    assert found["command"] == "{path}/bench.py --pair runs/pair"
